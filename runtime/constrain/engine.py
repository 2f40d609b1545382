"""The engine lane: one llguidance matcher per row, forked from a template that stays warm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.constrain.base import Matcher
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

    @property
    def engine(self) -> LLMatcher:
        """For batch fills on llguidance's executor."""
        return self._inner

    def advance(self, ids: Sequence[int]) -> bool:
        text = list(ids)
        if not text:
            return True
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
        if self._ended or self._inner.is_stopped():
            return []
        return self._inner.compute_ff_tokens()

    def fill_mask(self, row: NDArray[np.uint32]) -> None:
        stopped = self._ended or self._inner.is_stopped()
        if stopped:
            self._check()
            row.fill(0)
        else:
            self._inner.unsafe_compute_mask_ptr(row.ctypes.data, self._vocabulary.words * 4)
            self._check()
        set_ends(row, self._vocabulary.end_ids, stopped or self._inner.is_accepting())

    def rollback(self, count: int) -> None:
        if count and self._ended:
            self._ended = False
            count -= 1
        self._take_back(count)

    def fork(self) -> EngineMatcher:
        twin = EngineMatcher(self._inner.deep_copy(), self._vocabulary)
        twin._ended = self._ended
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

    def __init__(self, template: LLMatcher, vocabulary: Vocabulary, size: int, place: Place | None = None) -> None:
        self._template = template
        self._vocabulary = vocabulary
        self._place = place
        self.size = size

    def matcher(self) -> Matcher:
        inner = EngineMatcher(self._template.deep_copy(), self._vocabulary)
        return inner if self._place is None else UniqueMatcher(inner, self._place, self._vocabulary.tokens)
