"""One row: everything known of a branch at the worker, and the decisions that depend on its ids alone.

    ids       0 ........ n_prompt ........ reported ........ len(ids)
              |  prompt  |   generated, sent   |  not sent yet |
    computed  0 .................. c                             KV stored for ids[:c]; ids[c:] is the tail

Ids that the matcher forces are appended without sampling. With log-probabilities wanted, a forced id is reported in the
step that computes the logits in front of it, so ``reported`` is then at most ``computed + 1``; without, at once.
An end decided inside forced ids waits for the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramet.runtime.constrain.base import Matcher
from ramet.runtime.protocol.ids import unpack_ids
from ramet.runtime.protocol.messages import RowEnd, RowStart, StopHit, TokenLogprob

from .sampling import Adjustments
from .stops import StopScanner


@dataclass(frozen=True)
class Vocabulary:
    """What the end of a row is decided by. ``token_bytes`` may be shorter than the logits are wide."""

    end_ids: tuple[int, ...]
    token_bytes: Sequence[bytes]

    def bytes_of(self, token: int) -> bytes:
        return self.token_bytes[token] if 0 <= token < len(self.token_bytes) else b""


@dataclass
class WaitingRow:
    """A row whose constraint is being compiled: it has its place and its blocks, and nothing is computed."""

    start: RowStart
    slot: int
    blocks: int


class Row:
    """State of one row; made from its RowStart, resumed ids included. Block tables are kept by the batch builder."""

    __slots__ = (
        "_end_ids",
        "_finish_at",
        "_jump_forward",
        "_scanner",
        "_vocabulary",
        "adjustments",
        "blocks",
        "computed",
        "final",
        "forced_flags",
        "ids",
        "logprobs",
        "matcher",
        "n_prompt",
        "reported",
        "slot",
        "start",
    )

    def __init__(
        self, start: RowStart, slot: int, vocabulary: Vocabulary, matcher: Matcher | None, *, jump_forward: bool
    ) -> None:
        known = unpack_ids(start.ids)
        self.start = start
        self.slot = slot
        self.n_prompt = start.n_prompt
        self.ids = known[: start.n_prompt]
        self.computed = start.computed
        self.blocks = len(start.blocks)
        self.matcher = matcher
        self.reported = len(known)
        self.forced_flags = bytearray()
        """One flag per id of ids[reported:]."""
        self.logprobs: list[TokenLogprob] = []
        """Log-probabilities of the next ids to be reported, in order, as far as they are computed."""
        self.final: RowEnd | None = None
        """How the row ends, once that is decided; it is reported when ``done``."""
        self._finish_at = 0
        self._vocabulary = vocabulary
        self._jump_forward = jump_forward and matcher is not None
        self._scanner = StopScanner(start.stops.strings)
        # Under ignore_end too where there is a constraint: it is drawn only where nothing else is allowed.
        ends = matcher is not None or not start.stops.ignore_end
        self._end_ids = frozenset(vocabulary.end_ids) if ends else frozenset()
        self.adjustments = Adjustments.of(start.sampling, start.n_prompt)
        self._replay(known[start.n_prompt :])

    # ------------------------------------------------------------ what is known

    @property
    def generated(self) -> int:
        return len(self.ids) - self.n_prompt

    @property
    def tail(self) -> int:
        """Ids still to be computed: all known ones, or, of a row whose end is decided, those its end waits for."""
        target = len(self.ids) if self.final is None else self._finish_at
        return max(target - self.computed, 0)

    @property
    def done(self) -> bool:
        return self.final is not None and self.computed >= self._finish_at

    @property
    def wants_logprobs(self) -> bool:
        return self.start.logprobs >= 0

    @property
    def banned(self) -> tuple[int, ...]:
        """Ids that may not be drawn now: end ids under ``ignore_end``, ends and stop ids before ``min_tokens``. The
        ban yields where the constraint allows nothing else: an end id then ends the row, and a stop id before
        ``min_tokens`` is an id like any other, as it is in a forced run."""
        stops = self.start.stops
        if self.generated < self.start.limits.min_tokens:
            return self._vocabulary.end_ids + stops.ids
        if stops.ignore_end:
            return tuple(i for i in self._vocabulary.end_ids if i not in stops.ids)
        return ()

    def scored(self, stop: int) -> list[int]:
        """Positions in [computed, stop) whose logits score the known id that follows, ascending: the prompt's from
        ``logits_from`` on, and those in front of forced ids that are not reported yet."""
        positions: list[int] = []
        if 0 <= self.start.logits_from < self.n_prompt - 1:
            positions.extend(range(max(self.start.logits_from, self.computed), min(stop, self.n_prompt - 1)))
        if self.wants_logprobs:
            positions.extend(range(max(self.computed, self.reported - 1), min(stop, len(self.ids) - 1)))
        return positions

    # ------------------------------------------------------------ growing

    def take_sampled(self, token: int, logprob: TokenLogprob | None) -> None:
        """Append a drawn id, then whatever the matcher forces after it; decide the end. End and stop ids are dropped,
        with their log-probability. ``token`` -1: nothing was allowed."""
        if token < 0:
            self.fail("no id is allowed here: the constraint and logit_bias exclude all")
            return
        before = len(self.ids)
        self._accept(token, forced=False)
        if logprob is not None and len(self.ids) > before:
            self.logprobs.append(logprob)
        self._settle()

    def fail(self, message: str) -> None:
        self.final = RowEnd("error", message=message)
        self._finish_at = 0

    def take_reportable(self) -> tuple[list[int], bytes, tuple[TokenLogprob, ...] | None]:
        """Ids to report now, their forced flags and log-probabilities."""
        stop = len(self.ids)
        if self.wants_logprobs:
            stop = max(self.reported, min(stop, self.reported + len(self.logprobs)))
        count = stop - self.reported
        ids = self.ids[self.reported : stop]
        flags = bytes(self.forced_flags[:count])
        logprobs = tuple(self.logprobs[:count]) if self.wants_logprobs else None
        del self.forced_flags[:count]
        del self.logprobs[:count]
        self.reported = stop
        return ids, flags, logprobs

    def _replay(self, known: list[int]) -> None:
        """Do again what led to ``known``: the same forced runs, the same checks. So a row that was pushed back inside
        a forced run, or whose process died there, goes on with the same ids."""
        if self.start.limits.max_tokens == 0:
            self.ids.extend(known)
            self.final, self._finish_at = RowEnd("length"), len(self.ids)
            return
        position = 0
        while self.final is None:
            run = self._forced_run()
            for token in run:
                if position < len(known) and known[position] != token:
                    break  # not this matcher's doing (jump_forward was off): the known ids are the truth
                self._accept(token, forced=True)
                position += 1
                if self.final is not None:
                    break
            if position >= len(known):
                if run and self.final is None:
                    continue
                break
            if self.final is None:
                self._accept(known[position], forced=False)
                position += 1
        self.reported = min(self.reported, len(self.ids))
        del self.forced_flags[: self.reported - self.n_prompt]
        self._conclude()
        if not self.ids and self.final is None:
            self.fail("an empty prompt has no last id to go on from; give at least one id")

    def _settle(self) -> None:
        """Append forced runs until there is a choice, or an end."""
        while self.final is None and (run := self._forced_run()):
            for token in run:
                self._accept(token, forced=True)
                if self.final is not None:
                    break
        self._conclude()

    def _conclude(self) -> None:
        """A complete value ends its row, also where the limit was met with its last id."""
        if self.matcher is None:
            return
        if (self.final is None or self.final.reason == "length") and self.matcher.finished:
            self.final = RowEnd("end")
        if self.final is None or self.final.reason == "error" or not self.wants_logprobs:
            return
        if self.reported + len(self.logprobs) < len(self.ids):
            # Forced ids are not reported yet: the logits in front of the last of them come first.
            self._finish_at = len(self.ids) - 1

    def _forced_run(self) -> list[int]:
        if not self._jump_forward or self.matcher is None or self.matcher.finished:
            return []
        return self.matcher.forced()

    def _accept(self, token: int, *, forced: bool) -> None:
        """Append one id and decide whether it ends the row."""
        start = self.start
        index = len(self.ids)
        enough = self.generated >= start.limits.min_tokens
        if enough and token in start.stops.ids:
            self.final = RowEnd("stop", StopHit(which=-1 - start.stops.ids.index(token), at=index, leftover=b""))
            return
        if token in self._end_ids:
            self.final = RowEnd("end")
            return
        if self.matcher is not None and not self.matcher.advance((token,)):
            self.fail(f"the constraint refuses id {token} at position {index}")
            return
        self.ids.append(token)
        self.forced_flags.append(forced)
        hit = self._scanner.push(index, self._vocabulary.bytes_of(token))
        if hit is not None and self.generated >= start.limits.min_tokens:
            self.final = RowEnd("stop", hit)
        elif self.generated >= start.limits.max_tokens:
            self.final = RowEnd("length")
