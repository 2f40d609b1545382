"""One document to one record."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ramet.extraction import partial
from ramet.extraction.confidence import Confidence, confidence
from ramet.extraction.prompt import Frame
from ramet.extraction.records import Record, RecordUsage, Status
from ramet.extraction.schema import Target
from ramet.extraction.sources import Document
from ramet.runtime.constrain import compile
from ramet.runtime.protocol.errors import ConstraintError, InvalidRequest, RametError
from ramet.runtime.protocol.messages import ConstraintSpec, Usage

if TYPE_CHECKING:
    from ramet.extraction.finish import Closer
    from ramet.runtime.frontend.client import Client
    from ramet.runtime.frontend.requests import ChoiceResult, Chunk
    from ramet.runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Options:
    """How each record is generated.

    max_tokens: budget of one record. temperature 0 is greedy. seed: of sampled records (the same for each,
    so that a record depends on its document alone). document_tokens: longer documents are cut there (0: no
    cut). fit: what to do with a document that does not fit the context: "error" (status too_long) or "truncate".
    retries: how often an answer that a validator refused is asked for again, with the refusal behind the document.
    on_length: what to do where the budget ends first: "error" (status length); "retry" (ask again, with twice the
    budget, as often as ``retries`` says, once at least); "close" (the shortest end that the schema allows, inside the
    budget). confidence: how sure the model was of each field, see ``confidence.py``.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    document_tokens: int = 0
    fit: Literal["error", "truncate"] = "error"
    retries: int = 0
    on_length: Literal["error", "retry", "close"] = "error"
    confidence: bool = False


@dataclass(frozen=True)
class Outcome:
    """A record and what it cost. ``prompt`` and ``answer`` are the token ids of the last attempt."""

    record: Record
    usage: Usage
    prompt: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Verdict:
    """Of one answer. ``note``: what to say when it is asked for again; None: it stands."""

    status: Status
    value: object = None
    error: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class _Task:
    """One document as the model sees it, and the constraint of its record."""

    id: str | int
    ids: list[int]
    text: str
    spec: ConstraintSpec


class Extractor:
    """Frames a document, has it answered under the schema's constraint, and reads the answer."""

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
        self._frame = frame
        self._target = target
        self._schema: object = json.loads(target.text)
        self._options = options
        self._closer = closer
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
        asked = Answers()
        try:
            ids, text = self.visible(document)
            if len(ids) > self._room:
                return Outcome(self._too_long(document, len(ids)), Usage())
            task = _Task(document.id, ids, text, self._target.binding.spec(text))
            return await self._ask_until_it_stands(task, asked, on_chunk)
        except RametError as error:
            if isinstance(error, ConstraintError) and not self._target.binding.fields:
                raise  # the same for every document
            status: Status = "too_long" if error.code == "context_length_exceeded" else "error"
            record = Record(
                document.id, status, error=str(error), attempts=max(1, asked.count), usage=asked.record_usage()
            )
            return Outcome(record, asked.usage)

    def visible(self, document: Document) -> tuple[list[int], str]:
        """Ids and text of the document, cut as the options say."""
        ids = self._tokenizer.encode(document.text)
        size = len(ids)
        if self._options.document_tokens:
            ids = ids[: self._options.document_tokens]
        if self._options.fit == "truncate":
            ids = ids[: self._room]
        return ids, document.text if len(ids) == size else self._tokenizer.decode(ids).decode(errors="ignore")

    async def _ask_until_it_stands(
        self, task: _Task, asked: Answers, on_chunk: Callable[[Chunk], None] | None
    ) -> Outcome:
        note, budget = None, self._options.max_tokens
        while True:
            prompt = self._frame.prompt(task.ids, note)
            choice = await self._ask(prompt, task.spec, budget, asked.count, on_chunk)
            asked.add(choice.usage)
            verdict = await self._judge(task, choice, budget)
            if verdict.note is None or asked.count > self._retries(verdict.status):
                break
            note = verdict.note
            if verdict.status == "length":
                budget *= 2
        record = Record(
            task.id,
            verdict.status,
            verdict.value,
            self._confidence(choice) if verdict.status in ("ok", "invalid") else None,
            verdict.error,
            asked.count,
            asked.record_usage(),
            self._target.binding.spans(verdict.value, task.text),
        )
        return Outcome(record, asked.usage, tuple(prompt), tuple(choice.ids))

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

    async def _judge(self, task: _Task, choice: ChoiceResult, budget: int) -> _Verdict:
        if choice.finish_reason == "length":
            return await self._cut(task, choice, budget)
        if choice.finish_reason in ("error", "cancelled"):
            return _Verdict("error", error=choice.message or f"the request was {choice.finish_reason}")
        try:
            value = json.loads(choice.text, parse_float=_double)
        except ValueError as error:
            return _Verdict("error", error=f"the answer is not JSON ({error})")
        refusal = self._target.refusal(choice.text)
        if refusal is None:
            return _Verdict("ok", value)
        return _Verdict("invalid", value, refusal, note=f"An earlier answer was refused: {refusal}. Answer again.")

    async def _cut(self, task: _Task, choice: ChoiceResult, budget: int) -> _Verdict:
        """Of an answer whose budget ended first."""
        found = partial.read(choice.text)
        lacking = ", ".join(partial.missing(self._schema, found.value, found.cut)) or "the end"
        error = (
            f"cut after {budget} tokens, before {lacking}: give a larger --max-tokens, or bound its strings and lists"
        )
        if self._options.on_length == "retry":
            return _Verdict("length", error=error, note="An earlier answer was too long. Keep every text short.")
        if self._options.on_length == "close" and self._closer is not None:
            ids = await asyncio.to_thread(self._closed, self._closer, task.spec, choice.ids, budget)
            if ids is None:
                return _Verdict("length", error=f"{error} (no end fits into {budget} tokens)")
            text = self._tokenizer.decode(ids).decode(errors="replace")
            refusal = self._target.refusal(text)
            closed = f"closed at {budget} tokens: {lacking} ended in the shortest way"
            return _Verdict("ok" if refusal is None else "invalid", json.loads(text), refusal or closed)
        return _Verdict("length", error=error)

    def _closed(self, closer: Closer, spec: ConstraintSpec, ids: list[int], budget: int) -> list[int] | None:
        return closer.close(compile(spec, self._tokenizer), ids, budget)

    def _confidence(self, choice: ChoiceResult) -> Confidence | None:
        if not self._options.confidence or choice.logprobs is None or choice.finish_reason == "length":
            return None
        # A last id may be an end id, which spells nothing.
        spelled = [self._tokenizer.token_bytes(token) for token in choice.ids]
        return confidence(choice.text, partial.read(choice.text).leaves, spelled, choice.logprobs)

    def _too_long(self, document: Document, size: int) -> Record:
        return Record(
            document.id,
            "too_long",
            error=f"the document has {size} tokens, and {self._room} fit beside the instruction and the answer: "
            "shorten it, or give --fit truncate",
        )


class Answers:
    """How often a document was asked about, and what that has cost."""

    def __init__(self) -> None:
        self.count = 0
        self.usage = Usage()

    def add(self, usage: Usage) -> None:
        self.count += 1
        pairs = ((getattr(self.usage, name), getattr(usage, name)) for name in Usage.__struct_fields__)
        self.usage = Usage(*(total + more for total, more in pairs))

    def record_usage(self) -> RecordUsage:
        return RecordUsage(self.usage.prompt, self.usage.completion, self.usage.forced, self.usage.sampled)


def _double(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} exceeds the range of a double")
    return number
