"""What a job gives for each document, as one line of JSON, and the sums over a job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec.structs
from msgspec import Struct

from ramet.runtime.protocol.messages import Usage

Status = Literal["ok", "length", "invalid", "too_long", "error"]


class RecordUsage(Struct, frozen=True):
    """Tokens of all attempts of one record: what the request alone decides, so that a resumed job writes equal bytes.

    What came from the cache depends on the moment; it is in the job's closing line.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    sampled_tokens: int = 0


class Record(Struct, frozen=True):
    """One output line. ``value`` is the parsed JSON where status is ok, else what there is of it, or None.

    ok: keeps to the schema. length: cut by max_tokens. invalid: valid JSON that a validator refused. too_long: the
    document does not fit the context. error: everything else; ``error`` says what. ``confidence``: by JSON pointer of
    the field, where it was asked for (see ``confidence.py``). ``spans``: by JSON pointer of each field that is copied
    from the document, where it stands there, as characters [start, end); only where the schema has such fields.
    ``chunks``: of a document that was taken in chunks, by JSON pointer of each item of an array: the chunk it is from.
    """

    id: str | int
    status: Status
    value: object = None
    confidence: dict[str, dict[str, float]] | None = None
    error: str | None = None
    attempts: int = 1
    usage: RecordUsage = RecordUsage()
    spans: dict[str, tuple[int, int]] | None = None
    chunks: dict[str, tuple[int, int]] | None = None

    def line(self) -> bytes:
        fields = msgspec.structs.asdict(self)
        fields["usage"] = msgspec.structs.asdict(self.usage)
        for name in ("spans", "chunks"):
            if fields[name] is None:
                del fields[name]
        try:
            return (_dump(fields, ascii=False) + "\n").encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell and UTF-8 cannot
            return (_dump(fields, ascii=True) + "\n").encode()


def _dump(value: object, *, ascii: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii, separators=(",", ":"), allow_nan=False)


@dataclass
class Totals:
    """Sums over a job."""

    records: int = 0
    valid: int = 0
    prompt: int = 0
    cached: int = 0
    computed: int = 0
    forced: int = 0
    sampled: int = 0
    statuses: dict[Status, int] = field(default_factory=dict)
    fields: Counter[str] = field(default_factory=Counter)
    """Sampled tokens by field: each took a step of the model."""

    def add(self, record: Record, usage: Usage, fields: Mapping[str, int] | None = None) -> None:
        self.count(record.status)
        self.fields.update(fields or {})
        self.prompt += usage.prompt
        self.cached += usage.cached
        self.computed += usage.computed
        self.forced += usage.forced
        self.sampled += usage.sampled

    def count(self, status: Status) -> None:
        """One more record, with no tokens (written by an earlier run)."""
        self.records += 1
        self.valid += status == "ok"
        self.statuses[status] = self.statuses.get(status, 0) + 1

    @property
    def cached_share(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0

    def summary(self) -> str:
        """How many records have which status, and the field that took the most of the model's time."""
        order = {status: number for number, status in enumerate(get_args(Status))}
        counts = ", ".join(
            f"{self.statuses[status]} {status}" for status in sorted(self.statuses, key=order.__getitem__)
        )
        lines = [f"{self.records} records: {counts or 'none'}"]
        if self.fields and self.sampled:
            name, tokens = self.fields.most_common(1)[0]
            lines.append(
                f"slowest field: {name}, with {tokens / self.sampled:.0%} of the {self.sampled} sampled tokens"
            )
        return "\n".join(lines)

    def closing_line(self, seconds: float, *, names: int | None = None) -> str:
        """The last line that ``ramet extract``, ``ramet run`` and ``ramet demo`` print; others parse it."""
        named = "" if names is None else f"names={names} "
        return (
            f"records={self.records} valid={self.valid} {named}prompt_tokens={self.prompt} "
            f"cached_tokens={self.cached} computed_tokens={self.computed} forced_tokens={self.forced} "
            f"sampled_tokens={self.sampled} seconds={seconds:.2f}"
        )
