"""The engine lane: one llguidance matcher per row, forked from a template that stays warm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.constrain.base import Matcher
from ramet.runtime.constrain.closing import ClosingMatcher
from ramet.runtime.constrain.scanner import Place
from ramet.runtime.constrain.unique import UniqueMatcher
from ramet.runtime.constrain.vocabulary import Vocabulary
from ramet.runtime.protocol.errors import GenerationFailed

if TYPE_CHECKING:
    from llguidance import LLMatcher


class EngineMatcher:
    """See ``base.Matcher``. An end id may be advanced over where the text may end; rollback takes it back too."""

    def __init__(self, inner: LLMatcher, vocabulary: Vocabulary) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._ended = False
        self._forced: list[int] | None = None
        """Of this state, once it was asked for."""
        self._uncertain = False
        """Text is forced, but none of its ids is certain."""

    def advance(self, ids: Sequence[int]) -> bool:
        text = list(ids)
        if not text:
            return True
        self._forced, self._uncertain = None, False
        ends = text[-1] in self._vocabulary.end_ids
        if ends:
            text.pop()
        if self._ended:
            return False
        if text:
            taken = self._inner.try_consume_tokens(text)
            if taken < len(text):
                self._take_back(taken)
                return False
        if ends and not self._inner.is_accepting():
            self._take_back(len(text))
            return False
        self._ended = ends
        return True

    def forced(self) -> list[int]:
        return self._forced_ids().copy()

    def _forced_ids(self) -> list[int]:
        """The engine knows what text must follow, and leaves out of its ids what a longer token could take the place
        of. What else the text behind may change is ours to leave out."""
        if self._forced is None:
            found = [] if self._ended or self._inner.is_stopped() else self._inner.compute_ff_tokens()
            if found:
                whole, count = self._vocabulary.tails.of(self._inner.compute_ff_bytes())
                if count < len(found) and whole[: len(found)] == found:
                    certain = found[:count]
                    self._uncertain = not certain
                    found = certain
            self._forced = found
        return self._forced

    def _is_uncertain(self) -> bool:
        if self._forced is None:
            text = self._inner.compute_ff_bytes()
            if text:
                ids, count = self._vocabulary.tails.of(text)
                if count < len(ids):
                    self._forced_ids()
        return self._uncertain

    def fill_mask(self, row: NDArray[np.uint32]) -> None:
        inner = self._inner
        if self._ended or inner.is_stopped():
            self._check()
            row.fill(0)
            set_ends(row, self._vocabulary.end_ids, True)
            return
        # The engine knows every end id and sets their bits itself. (``row.ctypes`` would take longer than the mask.)
        inner.unsafe_compute_mask_ptr(row.__array_interface__["data"][0], self._vocabulary.words * 4)
        if inner.is_error():
            self._check()
        if self._is_uncertain():
            self._widen(row)

    def _widen(self, row: NDArray[np.uint32]) -> None:
        """Allow every token that agrees with the text that must follow: the engine's mask holds but the first id of
        its own encoding."""
        index, single = self._vocabulary.tokens, self._vocabulary.single_bytes
        text = self._inner.compute_ff_bytes()
        behind = self._inner.deep_copy()
        ids, _ = self._vocabulary.tails.of(text)
        if behind.try_consume_tokens(ids) < len(ids):
            return
        for token in index.beginning(text):
            row[token >> 5] |= np.uint32(1 << (token & 31))
        for token in index.starting_with(text):
            rest = [single.get(byte, -1) for byte in index.table[token][len(text) :]]
            if -1 not in rest and behind.validate_tokens(rest) == len(rest):
                row[token >> 5] |= np.uint32(1 << (token & 31))

    def rollback(self, count: int) -> None:
        self._forced, self._uncertain = None, False
        if count and self._ended:
            self._ended = False
            count -= 1
        self._take_back(count)

    def fork(self) -> EngineMatcher:
        twin = EngineMatcher(self._inner.deep_copy(), self._vocabulary)
        twin._ended, twin._forced, twin._uncertain = self._ended, self._forced, self._uncertain
        return twin

    @property
    def can_end(self) -> bool:
        return self._ended or self._inner.is_accepting()

    @property
    def finished(self) -> bool:
        return self._ended or (self._inner.is_stopped() and not self._inner.is_error())

    def _take_back(self, count: int) -> None:
        if count:
            self._inner.rollback(count)
        self._check()

    def _check(self) -> None:
        if self._inner.is_error():
            raise GenerationFailed(f"the constraint's engine gave up: {self._inner.get_error()}")


def set_ends(row: NDArray[np.uint32], end_ids: Sequence[int], allowed: bool) -> None:
    """Set or clear the bit of every end id."""
    for end in end_ids:
        bit = np.uint32(1 << (end & 31))
        if allowed:
            row[end >> 5] |= bit
        else:
            row[end >> 5] &= ~bit


class EngineConstraint:
    """See ``base.CompiledConstraint``."""

    lane = "engine"

    def __init__(
        self,
        template: LLMatcher,
        vocabulary: Vocabulary,
        size: int,
        place: Place | None = None,
        close_after: int = 0,
    ) -> None:
        self._template = template
        self._vocabulary = vocabulary
        self._place = place
        self._close_after = close_after
        self.size = size

    def matcher(self) -> Matcher:
        vocabulary = self._vocabulary
        matcher: Matcher = EngineMatcher(self._template.deep_copy(), vocabulary)
        if self._place is not None:
            matcher = UniqueMatcher(matcher, self._place, vocabulary.tokens)
        if self._close_after:
            matcher = ClosingMatcher(matcher, self._close_after, vocabulary.closers, vocabulary.table)
        return matcher
