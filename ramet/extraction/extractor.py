"""One document to one record."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ramet.extraction.prompt import Encoder, Frame
from ramet.extraction.records import Record, RecordUsage, Status
from ramet.extraction.schema import Target
from ramet.extraction.sources import Document
from ramet.runtime.protocol.errors import ConstraintError, InvalidRequest, RametError
from ramet.runtime.protocol.messages import Usage

if TYPE_CHECKING:
    from ramet.runtime.frontend.client import Client
    from ramet.runtime.frontend.requests import Chunk


@dataclass(frozen=True)
class Options:
    """How each record is generated.

    max_tokens: budget of one record. temperature 0 is greedy. seed: of sampled records (the same for each,
    so that a record depends on its document alone). document_tokens: longer documents are cut there (0: no
    cut). fit: what to do with a document that does not fit the context: "error" (status too_long) or "truncate".
    """

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    document_tokens: int = 0
    fit: Literal["error", "truncate"] = "error"


@dataclass(frozen=True)
class Outcome:
    """A record and what it cost. ``prompt`` and ``answer`` are the token ids of the last attempt."""

    record: Record
    usage: Usage
    prompt: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()


class Extractor:
    """Frames a document, has it answered under the schema's constraint, and reads the answer."""

    def __init__(
        self, client: Client, encoder: Encoder, frame: Frame, target: Target, context: int, options: Options
    ) -> None:
        self._client = client
        self._encoder = encoder
        self._frame = frame
        self._target = target
        self._options = options
        self._room = context - frame.size - options.max_tokens
        """Tokens that a document may have beside the instruction and the answer."""
        if self._room < 1:
            raise InvalidRequest(
                f"the instruction takes {frame.size} tokens and max_tokens is {options.max_tokens}: nothing is left "
                f"for a document in a context of {context}; shorten the instruction or give a smaller --max-tokens",
                param="max_tokens",
            )

    def prompt(self, document: Document) -> list[int] | None:
        """Token ids of the whole prompt; None if the document is too long."""
        ids = self._document_ids(document)
        return None if len(ids) > self._room else [*self._frame.prefix, *ids, *self._frame.suffix]

    async def extract(self, document: Document, on_chunk: Callable[[Chunk], None] | None = None) -> Outcome:
        """Raises ConstraintError where the schema itself is refused; every other failure is a record."""
        if document.fault:
            return Outcome(Record(document.id, "error", error=document.fault, attempts=0), Usage())
        prompt: list[int] | None = []
        try:
            prompt = self.prompt(document)
            if prompt is None:
                return Outcome(self._too_long(document), Usage())
            return await self._ask(document, prompt, on_chunk)
        except ConstraintError:
            raise
        except RametError as error:
            status: Status = "too_long" if error.code == "context_length_exceeded" else "error"
            return Outcome(Record(document.id, status, error=str(error)), Usage(), tuple(prompt or ()))

    def _document_ids(self, document: Document) -> list[int]:
        ids = self._encoder.encode(document.text)
        cut = self._options.document_tokens
        if cut and len(ids) > cut:
            ids = ids[:cut]
        if self._options.fit == "truncate":
            ids = ids[: self._room]
        return ids

    async def _ask(self, document: Document, prompt: list[int], on_chunk: Callable[[Chunk], None] | None) -> Outcome:
        from ramet.runtime.frontend.requests import GenerateRequest

        generation = self._client.generate(
            GenerateRequest(
                ids=prompt,
                temperature=self._options.temperature,
                seed=self._options.seed,
                max_tokens=self._options.max_tokens,
                constraint=self._target.spec,
            )
        )
        if on_chunk is not None:
            async for chunk in generation:
                on_chunk(chunk)
        [choice] = await generation.result()
        status, value, error = self._read(choice.text, choice.finish_reason, choice.message)
        usage = choice.usage
        record = Record(
            document.id,
            status,
            value,
            error,
            attempts=1,
            usage=RecordUsage(usage.prompt, usage.completion, usage.forced, usage.sampled),
        )
        return Outcome(record, usage, tuple(prompt), tuple(choice.ids))

    def _read(self, text: str, reason: str, message: str) -> tuple[Status, object, str | None]:
        if reason == "length":
            return "length", None, f"cut after {self._options.max_tokens} tokens: give a larger --max-tokens"
        if reason in ("error", "cancelled"):
            return "error", None, message or f"the request was {reason}"
        try:
            value = json.loads(text, parse_float=_double)
        except ValueError as error:
            return "error", None, f"the answer is not JSON ({error})"
        refusal = self._target.refusal(text)
        return ("ok", value, None) if refusal is None else ("invalid", value, refusal)

    def _too_long(self, document: Document) -> Record:
        size = len(self._document_ids(document))
        return Record(
            document.id,
            "too_long",
            error=f"the document has {size} tokens, and {self._room} fit beside the instruction and the answer: "
            "shorten it, or give --fit truncate",
        )


def _double(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} exceeds the range of a double")
    return number
