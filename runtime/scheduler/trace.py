"""Traces: what arrives when, and what it shares, without a single word of text.

Two formats, one JSON object a line:

* Mooncake: ``{"timestamp": ms, "input_length": n, "output_length": m, "hash_ids": [...]}``; each hash id stands for 512
  tokens of the prompt, equal ids mean equal prefixes.
* ramet: ``{"prompt": [["system", 300], ["doc 7", 512], ["out 3", 40]], "output": 40, "at": s, "after": [3]}``; a
  segment is a name and a length, equal names mean equal tokens, ``out k`` is what request k (from 0) generated.
  Optional: ``at`` (seconds), ``after`` (requests that must have ended), ``tenant``, ``priority``, ``keep``, ``score``
  (nothing is generated: the last segment is scored), ``n`` (choices).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MOONCAKE_BLOCK = 512

Segment = tuple[str, int]


class BadTrace(ValueError):
    """A line of the trace does not say what a request needs; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """``prompt``: segments of (name, tokens). ``at``: earliest arrival in seconds."""

    prompt: tuple[Segment, ...]
    output: int
    at: float = 0.0
    after: tuple[int, ...] = ()
    tenant: str = ""
    priority: int = 0
    keep: bool = False
    score: bool = False
    n: int = 1

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.prompt)


class Vocabulary:
    """Names to token ids: token i of a name is the same wherever it appears, and belongs to no other name."""

    def __init__(self, span: int) -> None:
        self._span = span
        self._bases: dict[str, int] = {}

    def base(self, name: str) -> int:
        """First token id of a name."""
        found = self._bases.get(name)
        if found is None:
            found = self._bases[name] = len(self._bases) * self._span % (1 << 31)
        return found

    def ids(self, prompt: Sequence[Segment]) -> bytes:
        """int32 bytes of a prompt."""
        parts = [np.arange(base := self.base(name), base + count, dtype="<i4") for name, count in prompt]
        return b"".join(part.tobytes() for part in parts)

    @property
    def names(self) -> int:
        return len(self._bases)


def load(path: Path, *, limit: int = 0, max_output: int = -1) -> list[TraceRequest]:
    """Requests of a trace file, at most ``limit`` (0: all), outputs cut at ``max_output`` (-1: not)."""
    requests: list[TraceRequest] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if limit and len(requests) >= limit:
                break
            try:
                request = _parse(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise BadTrace(f"line {number} of {path}: {type(error).__name__}: {error}") from error
            if any(not 0 <= earlier < len(requests) for earlier in request.after):
                raise BadTrace(f"line {number} of {path}: after={list(request.after)} names no earlier request")
            requests.append(request)
    return cut_outputs(requests, max_output)


def cut_outputs(requests: Iterable[TraceRequest], max_output: int) -> list[TraceRequest]:
    if max_output < 0:
        return list(requests)
    return [
        TraceRequest(r.prompt, min(r.output, max_output), r.at, r.after, r.tenant, r.priority, r.keep, r.score, r.n)
        for r in requests
    ]


def save(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Write ramet's own format."""
    with path.open("w", encoding="utf-8") as file:
        for request in requests:
            row: dict[str, object] = {"prompt": [list(segment) for segment in request.prompt], "output": request.output}
            for name in ("at", "after", "tenant", "priority", "keep", "score"):
                if value := getattr(request, name):
                    row[name] = value
            if request.n != 1:
                row["n"] = request.n
            file.write(json.dumps(row) + "\n")


def _parse(row: dict[str, object]) -> TraceRequest:
    if "hash_ids" in row:
        return _mooncake(row)
    prompt = tuple((str(name), int(count)) for name, count in row["prompt"])  # type: ignore[attr-defined]
    if not prompt or any(count < 1 for _, count in prompt):
        raise ValueError("a prompt needs segments of at least one token")
    after = row.get("after", ())
    return TraceRequest(
        prompt,
        int(row.get("output", 0)),  # type: ignore[call-overload]
        float(row.get("at", 0.0)),  # type: ignore[arg-type]
        tuple(int(index) for index in after),  # type: ignore[attr-defined]
        str(row.get("tenant", "")),
        int(row.get("priority", 0)),  # type: ignore[call-overload]
        bool(row.get("keep", False)),
        bool(row.get("score", False)),
        int(row.get("n", 1)),  # type: ignore[call-overload]
    )


def _mooncake(row: dict[str, object]) -> TraceRequest:
    length = int(row["input_length"])  # type: ignore[call-overload]
    hashes = list(row["hash_ids"])  # type: ignore[call-overload]
    if length < 1 or len(hashes) != -(-length // MOONCAKE_BLOCK):
        raise ValueError(f"{len(hashes)} hash ids do not fit {length} tokens in blocks of {MOONCAKE_BLOCK}")
    prompt = [(f"block {h}", MOONCAKE_BLOCK) for h in hashes]
    prompt[-1] = (prompt[-1][0], length - MOONCAKE_BLOCK * (len(hashes) - 1))
    output = int(row["output_length"])  # type: ignore[call-overload]
    return TraceRequest(tuple(prompt), output, float(row.get("timestamp", 0)) / 1000)  # type: ignore[arg-type]
