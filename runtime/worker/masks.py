"""Masks of a step's constrained rows, filled in a thread beside the forward pass.

A row samples only where its tail ends, and its matcher has already taken all known ids: so its mask depends on nothing
that the forward pass computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.constrain.base import Matcher


@dataclass(frozen=True)
class Masks:
    """``mask`` [L, ceil(V / 32)] and ``masked`` [L] as in SampleBatch, valid until the next step (None: no row is
    constrained). ``errors``: per failed row (index in L) why."""

    mask: NDArray[np.uint32] | None = None
    masked: NDArray[np.bool_] | None = None
    errors: tuple[tuple[int, str], ...] = ()

    def without_dead_end(self, index: int, banned: tuple[int, ...]) -> tuple[int, ...]:
        """``banned``, or nothing where it holds every id that the mask of row ``index`` allows."""
        if not banned or self.mask is None or self.masked is None or not self.masked[index]:
            return banned
        ids = np.array(banned)
        bits = np.zeros(self.mask.shape[1], np.uint32)
        np.bitwise_or.at(bits, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
        return banned if (self.mask[index] & ~bits).any() else ()


class MaskFiller:
    """One buffer, one thread: at most one step's masks are under way."""

    def __init__(self, vocab_size: int) -> None:
        self._words = (vocab_size + 31) // 32
        self._mask = np.zeros((0, self._words), np.uint32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    def begin(self, matchers: Sequence[Matcher | None]) -> Future[Masks] | None:
        """Start filling; None where nothing is to fill."""
        if all(matcher is None for matcher in matchers):
            return None
        if len(matchers) > len(self._mask):
            self._mask = np.zeros((len(matchers), self._words), np.uint32)
        return self._thread.submit(self._fill, matchers)

    def _fill(self, matchers: Sequence[Matcher | None]) -> Masks:
        mask = self._mask[: len(matchers)]
        errors: list[tuple[int, str]] = []
        for index, matcher in enumerate(matchers):
            if matcher is None:
                continue
            row = mask[index]
            row[:] = 0
            try:
                matcher.fill_mask(row)
            except Exception as error:  # whatever one matcher raises is its own row's failure, not the step's
                errors.append((index, f"the constraint failed: {error}"))
        return Masks(mask, np.array([m is not None for m in matchers]), tuple(errors))

    def close(self) -> None:
        self._thread.shutdown(wait=True)
