"""State of one choice of an open request: its ids, its text, what was handed out.

ids     0 ........ n_prompt ........ len(ids)
        |  prompt  |  generated     |
handed out         0 ... taken       (index among the generated ids; later ones wait for the text they belong to)
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from ramet.runtime.protocol.ids import unpack_ids
from ramet.runtime.protocol.messages import (
    BranchRef,
    Finished,
    PromptLogprobs,
    StopHit,
    TokenDelta,
    TokenLogprob,
    Usage,
)

from .detokenizer import Detokenizer, spell
from .holdback import Holdback, Stop
from .requests import ChoiceResult, Chunk, Finish


class OffsetGap(Exception):
    """A delta does not join on to what is known: ids were lost."""


class Choice:
    def __init__(
        self,
        branch: BranchRef,
        prompt: array[int],
        table: Sequence[bytes],
        stops: Sequence[Stop],
        logprobs: bool,
        *,
        shown: Mapping[int, bytes] | None = None,
    ) -> None:
        """``shown``: by ``StopHit.which``, what a stop adds to the text that it ends."""
        self.branch = branch
        self.index = branch[1]
        self.ids = array("i", prompt)
        self.n_prompt = len(prompt)
        self.forced = bytearray()
        self.logprobs: list[TokenLogprob] | None = [] if logprobs else None
        self.prompt_logprobs: list[TokenLogprob] = []
        self.prompt_logprobs_from = 0
        self.cached = -1
        self.finish: Finish | None = None
        self.text = ""
        self._table = table
        self._size = len(table)
        self._decoder = Detokenizer()
        self._holdback = Holdback(stops) if stops else None
        self._shown = shown or {}
        self._ends: list[int] = []
        self._taken = 0

    # ------------------------------------------------------------ messages in

    def delta(self, message: TokenDelta) -> Chunk | None:
        """Raises OffsetGap. Ids that are known already (sent again after a restart) are dropped."""
        known = len(self.ids)
        ids = unpack_ids(message.ids)
        forced, logprobs = message.forced, message.logprobs
        skip = known - message.offset
        if skip < 0:
            raise OffsetGap(f"ids {known} to {message.offset} of branch {self.branch} are missing")
        if skip:
            ids, forced = ids[skip:], forced[skip:]
            logprobs = logprobs[skip:] if logprobs is not None else None
        if self.cached < 0:
            self.cached = message.cached_tokens
        if not ids:
            return None
        self.ids.extend(ids)
        self.forced += forced
        if self.logprobs is not None and logprobs is not None:
            self.logprobs.extend(logprobs)
        if self._holdback is None:
            table, size = self._table, self._size
            data = b"".join([table[token] for token in ids if token < size])
            return self._chunk(self._decoder.feed(data), len(self.ids) - self.n_prompt, None)
        return self._held_chunk(self._holdback, ids)

    def _held_chunk(self, holdback: Holdback, ids: list[int]) -> Chunk | None:
        pieces = [self._table[token] if token < self._size else b"" for token in ids]
        end = holdback.total
        for piece in pieces:
            end += len(piece)
            self._ends.append(end)
        text = self._decoder.feed(holdback.feed(b"".join(pieces)))
        taken = self._taken
        while taken < len(self._ends) and self._ends[taken] <= holdback.released:
            taken += 1
        return self._chunk(text, taken, None)

    def prompt(self, message: PromptLogprobs) -> None:
        if not self.prompt_logprobs:
            self.prompt_logprobs_from = message.offset
        skip = self.prompt_logprobs_from + len(self.prompt_logprobs) - message.offset
        if skip >= 0:
            self.prompt_logprobs.extend(message.logprobs[skip:])

    def finished(self, message: Finished) -> Chunk:
        return self.end(Finish(message.reason, message.usage, message.stop, message.message))

    def end(self, finish: Finish) -> Chunk:
        """The one terminal event of this choice."""
        self.finish = finish
        rest = b"" if self._holdback is None else self._holdback.finish(self._text_length(finish.stop))
        if finish.stop is not None:
            rest += self._shown.get(finish.stop.which, b"")
        text = self._decoder.finish(rest)
        chunk = self._chunk(text, len(self.ids) - self.n_prompt, finish)
        assert chunk is not None
        return chunk

    def _text_length(self, stop: StopHit | None) -> int | None:
        """Bytes of the final text, which ends where the stop begins."""
        if stop is None:
            return None
        return len(spell(self._table, self.ids[self.n_prompt : stop.at])) + len(stop.leftover)

    # ------------------------------------------------------------ news out

    def _chunk(self, text: str, taken: int, finish: Finish | None) -> Chunk | None:
        first = self._taken
        if not text and taken == first and finish is None:
            return None
        self.text += text
        self._taken = taken
        begin, end = self.n_prompt + first, self.n_prompt + taken
        return Chunk(
            self.index,
            begin,
            text,
            self.ids[begin:end].tolist(),
            bytes(self.forced[first:taken]),
            self.logprobs[first:taken] if self.logprobs is not None else None,
            finish,
        )

    def usage_so_far(self) -> Usage | None:
        """For a resend: what was counted before (None: not admitted yet). The prompt counts in choice 0 only."""
        if self.cached < 0:
            return None
        generated = len(self.ids) - self.n_prompt
        forced = sum(self.forced)
        prompt = self.n_prompt if self.index == 0 else 0
        cached = self.cached if self.index == 0 else 0
        return Usage(prompt, cached, prompt - cached, generated, forced, generated - forced)

    def result(self) -> ChoiceResult:
        assert self.finish is not None
        return ChoiceResult(
            text=self.text,
            ids=self.ids[self.n_prompt :].tolist(),
            forced=bytes(self.forced),
            logprobs=self.logprobs,
            finish_reason=self.finish.reason,
            usage=self.finish.usage,
            stop=self.finish.stop,
            branch=self.branch,
            n_prompt=self.n_prompt,
            message=self.finish.message,
            prompt_logprobs=self.prompt_logprobs,
            prompt_logprobs_from=self.prompt_logprobs_from,
        )
