"""What an answer is worth: whether it stands, what it says, and what to say when it is asked for again."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.extraction.confidence import Confidence, confidence
from ramet.extraction.missing import missing
from ramet.extraction.options import Options
from ramet.extraction.records import Status
from ramet.extraction.schema import Target
from ramet.runtime.constrain import compile
from ramet.runtime.frontend.partial_json import read
from ramet.runtime.protocol.messages import ConstraintSpec

if TYPE_CHECKING:
    from ramet.extraction.finish import Closer
    from ramet.runtime.frontend.requests import ChoiceResult
    from ramet.runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Verdict:
    """Of one answer. ``note``: what to say when it is asked for again; None: it stands."""

    status: Status
    value: object = None
    error: str | None = None
    note: str | None = None
    confidence: Confidence | None = None


class Judge:
    """Reads answers to one schema. ``closer``: ends those that their budget cut, where that is wanted."""

    def __init__(self, target: Target, tokenizer: Tokenizer, options: Options, closer: Closer | None = None) -> None:
        self._target = target
        self._schema: object = json.loads(target.text)
        self._tokenizer = tokenizer
        self._options = options
        self._closer = closer

    async def judge(self, choice: ChoiceResult, spec: ConstraintSpec, budget: int) -> Verdict:
        """spec, budget: of the request that ``choice`` answers."""
        if choice.finish_reason == "length":
            return await self._cut(choice, spec, budget)
        if choice.finish_reason in ("error", "cancelled"):
            return Verdict("error", error=choice.message or f"the request was {choice.finish_reason}")
        return self.read(choice.text, self._confidence(choice))

    def read(self, text: str, confidence: Confidence | None = None) -> Verdict:
        """Of a whole answer."""
        try:
            value = self._target.record(json.loads(text, parse_float=_double))
        except ValueError as error:
            return Verdict("error", error=f"the answer is not JSON ({error})")
        refusal = self._target.refusal(json.dumps(value) if self._target.given else text)
        if refusal is None:
            return Verdict("ok", value, confidence=confidence)
        note = f"An earlier answer was refused: {refusal}. Answer again."
        return Verdict("invalid", value, refusal, note, confidence)

    async def read_merged(self, value: object, spec: ConstraintSpec) -> Verdict:
        """Of a record that was put together from others: it must keep to the schema as a whole, too."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if not await asyncio.to_thread(self._keeps, text, spec):
            return Verdict("invalid", value, "the chunks' records, merged, do not keep to the schema (too many items?)")
        return self.read(text)

    def _keeps(self, text: str, spec: ConstraintSpec) -> bool:
        matcher = compile(spec, self._tokenizer).matcher()
        return matcher.advance(self._tokenizer.encode(text)) and matcher.can_end

    async def _cut(self, choice: ChoiceResult, spec: ConstraintSpec, budget: int) -> Verdict:
        """Of an answer whose budget ended first."""
        found = read(choice.text)
        lacking = ", ".join(missing(self._schema, found.value, found.cut)) or "the end"
        error = f"cut after {budget} tokens, before {lacking}: give a larger --max-tokens"
        if self._options.on_length == "retry":
            return Verdict("length", error=error, note="An earlier answer was too long. Keep every text short.")
        if self._options.on_length == "error" or self._closer is None:
            return Verdict("length", error=error)
        ids = await asyncio.to_thread(self._closer.close, spec, choice.ids, budget)
        if ids is None:
            return Verdict("length", error=f"{error} (no end fits into {budget} tokens)")
        verdict = self.read(self._tokenizer.decode(ids).decode(errors="replace"))
        closed = f"closed at {budget} tokens: {lacking} ended in the shortest way"
        return Verdict(verdict.status, verdict.value, verdict.error or closed)

    def _confidence(self, choice: ChoiceResult) -> Confidence | None:
        if not self._options.confidence or choice.logprobs is None:
            return None
        # A last id may be an end id, which spells nothing.
        spelled = [self._tokenizer.token_bytes(token) for token in choice.ids]
        return confidence(choice.text, read(choice.text).leaves, spelled, choice.logprobs)


def _double(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} exceeds the range of a double")
    return number
