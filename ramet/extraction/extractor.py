"""One document to one record."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ramet.extraction.fields import sampled
from ramet.extraction.judge import Judge, Verdict
from ramet.extraction.merge import Piece, chunks, merged
from ramet.extraction.options import Options
from ramet.extraction.prompt import Frame
from ramet.extraction.records import Record, RecordUsage, Status
from ramet.extraction.schema import Target
from ramet.extraction.sources import Document
from ramet.runtime.frontend.encoding import beside_loop
from ramet.runtime.protocol.errors import ConstraintError, InvalidRequest, RametError
from ramet.runtime.protocol.messages import Usage

if TYPE_CHECKING:
    from ramet.extraction.finish import Closer
    from ramet.runtime.frontend.client import Client
    from ramet.runtime.frontend.requests import ChoiceResult, Chunk
    from ramet.runtime.protocol.messages import ConstraintSpec
    from ramet.runtime.tokenizer import Tokenizer

__all__ = ["Extractor", "Options", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """A record and what it cost. ``prompt`` and ``answer`` are the token ids of the last attempt. ``fields``: sampled
    tokens by field, see ``fields.sampled``."""

    record: Record
    usage: Usage
    prompt: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()
    fields: Mapping[str, int] = field(default_factory=dict)


class Extractor:
    """Frames a document (by ``frame``), has it answered under the schema's constraint, and reads the answer."""

    def __init__(
        self,
        client: Client,
        tokenizer: Tokenizer,
        frame: Frame,
        target: Target,
        context: int,
        options: Options,
        closer: Closer | None = None,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self.frame = frame
        self._target = target
        self._options = options
        self._judge = Judge(target, tokenizer, options, closer)
        self._room = context - frame.size - options.max_tokens
        """Tokens that a document may have beside the instruction and the answer."""
        if self._room < 1:
            raise InvalidRequest(
                f"the instruction takes {frame.size} tokens and max_tokens is {options.max_tokens}: nothing is left "
                f"for a document in a context of {context}; shorten the instruction or give a smaller --max-tokens",
                param="max_tokens",
            )

    async def extract(self, document: Document, on_chunk: Callable[[Chunk], None] | None = None) -> Outcome:
        """Raises ConstraintError where the schema itself is refused; every other failure is a record."""
        if document.fault:
            return Outcome(Record(document.id, "error", error=document.fault, attempts=0), Usage())
        if not document.text.strip():  # else the model would invent a record, of status ok
            return Outcome(Record(document.id, "error", error="the document is empty", attempts=0), Usage())
        try:
            ids, text = await beside_loop(len(document.text), lambda: self.visible(document))
        except RametError as error:
            return Outcome(Record(document.id, "error", error=str(error), attempts=0), Usage())
        if len(ids) <= self._room:
            return await self._answered(document.id, ids, text, on_chunk)
        if self._options.fit == "map":
            return await self._mapped(document.id, text)
        return Outcome(self._too_long(document, len(ids)), Usage())

    def visible(self, document: Document) -> tuple[list[int], str]:
        """Ids and text of the document, cut as the options say."""
        ids = self._tokenizer.encode(document.text)
        size = len(ids)
        if self._options.document_tokens:
            ids = ids[: self._options.document_tokens]
        if self._options.fit == "truncate":
            ids = ids[: self._room]
        return ids, document.text if len(ids) == size else self._tokenizer.decode(ids).decode(errors="ignore")

    # ------------------------------------------------------------ one prompt

    async def _answered(
        self, id: str | int, ids: Sequence[int], text: str, on_chunk: Callable[[Chunk], None] | None = None
    ) -> Outcome:
        """Ask until the answer stands, or no more attempts are allowed."""
        spec, note, budget = self._target.binding.spec(text), None, self._options.max_tokens
        asked = Answers()
        try:
            while True:
                prompt = self.frame.prompt(ids, note)
                choice = await self._ask(prompt, spec, budget, asked.count, on_chunk)
                asked.add(choice.usage)
                asked.fields += sampled(choice.text, list(map(self._tokenizer.token_bytes, choice.ids)), choice.forced)
                verdict = await self._judge.judge(choice, spec, budget)
                if verdict.note is None or asked.count > self._retries(verdict.status):
                    break
                note = verdict.note
                if verdict.status == "length":
                    budget *= 2
        except RametError as error:
            if isinstance(error, ConstraintError) and not self._target.binding.fields:
                raise  # the same for every document
            status: Status = "too_long" if error.code == "context_length_exceeded" else "error"
            asked.count = max(1, asked.count)
            return self._outcome(id, Verdict(status, error=str(error)), text, asked)
        outcome = self._outcome(id, verdict, text, asked)
        return replace(outcome, prompt=tuple(prompt), answer=tuple(choice.ids))

    def _outcome(self, id: str | int, verdict: Verdict, text: str, asked: Answers) -> Outcome:
        record = Record(
            id,
            verdict.status,
            verdict.value,
            verdict.confidence,
            verdict.error,
            asked.count,
            asked.record_usage(),
            self._target.binding.spans(verdict.value, text),
        )
        return Outcome(record, asked.usage, fields=asked.fields)

    def _retries(self, status: Status) -> int:
        if status == "length":
            return max(1, self._options.retries)
        return self._options.retries

    async def _ask(
        self,
        prompt: list[int],
        spec: ConstraintSpec,
        budget: int,
        attempt: int,
        on_chunk: Callable[[Chunk], None] | None,
    ) -> ChoiceResult:
        from ramet.runtime.frontend.requests import GenerateRequest

        generation = self._client.generate(
            GenerateRequest(
                ids=prompt,
                temperature=self._options.temperature,
                seed=self._options.seed,
                key_path=(attempt,) if attempt else (),
                max_tokens=budget,
                constraint=spec,
                logprobs=0 if self._options.confidence else -1,
            )
        )
        if on_chunk is not None:
            async for chunk in generation:
                on_chunk(chunk)
        [choice] = await generation.result()
        return choice

    # ------------------------------------------------------------ long documents

    async def _mapped(self, id: str | int, text: str) -> Outcome:
        """The chunks' records, merged: ok if all of them are, and the whole is."""

        def cut() -> tuple[list[Piece], list[list[int]]]:
            pieces = chunks(text, self._room, self._tokenizer)
            return pieces, [self._tokenizer.encode(piece.text) for piece in pieces]

        pieces, encoded = await beside_loop(len(text), cut)
        outcomes = await asyncio.gather(
            *(self._answered(id, ids, piece.text) for piece, ids in zip(pieces, encoded, strict=True))
        )
        total = Answers()
        for outcome in outcomes:
            total.add(outcome.usage, outcome.record.attempts)
            total.fields.update(outcome.fields)
        for number, outcome in enumerate(outcomes, 1):
            if outcome.record.status != "ok":
                said = f"chunk {number} of {len(pieces)}: {outcome.record.error}"
                record = Record(id, outcome.record.status, error=said, attempts=total.count, usage=total.record_usage())
                return Outcome(record, total.usage, fields=total.fields)
        value, origins = merged([outcome.record.value for outcome in outcomes])
        verdict = await self._judge.read_merged(value, self._target.binding.spec(text))
        record = Record(
            id,
            verdict.status,
            value,
            None,
            verdict.error,
            total.count,
            total.record_usage(),
            self._target.binding.spans(value, text),
            _places(pieces, origins),
        )
        return Outcome(record, total.usage, fields=total.fields)

    def _too_long(self, document: Document, size: int) -> Record:
        return Record(
            document.id,
            "too_long",
            error=f"the document has {size} tokens, and {self._room} fit beside the instruction and the answer: "
            "shorten it, or give --fit truncate or --fit map",
        )


def _places(pieces: Sequence[Piece], origins: dict[str, int]) -> dict[str, tuple[int, int]]:
    """By JSON pointer of each item of an array: the chunk that it was found in, as characters [start, end)."""
    bounds = [(piece.start, piece.start + len(piece.text)) for piece in pieces]
    return {item: bounds[number] for item, number in origins.items()}


class Answers:
    """How often a document was asked about, and what that has cost."""

    def __init__(self) -> None:
        self.count = 0
        self.usage = Usage()
        self.fields: Counter[str] = Counter()

    def add(self, usage: Usage, attempts: int = 1) -> None:
        self.count += attempts
        pairs = ((getattr(self.usage, name), getattr(usage, name)) for name in Usage.__struct_fields__)
        self.usage = Usage(*(total + more for total, more in pairs))

    def record_usage(self) -> RecordUsage:
        return RecordUsage(self.usage.prompt, self.usage.completion, self.usage.forced, self.usage.sampled)
