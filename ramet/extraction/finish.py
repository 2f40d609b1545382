"""When the budget of an answer ends before the answer does: the shortest end that the constraint allows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramet.extraction.shortest.machine import Machine
from ramet.extraction.shortest.search import Distances, Search, TooFar, ends_alone
from ramet.runtime.constrain.compiler import compiler_for

if TYPE_CHECKING:
    from ramet.runtime.protocol.messages import ConstraintSpec
    from ramet.runtime.tokenizer import Tokenizer


class Closer:
    """Ends cut answers over one tokeniser. Threads may share it: they wait for each other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._table = tokenizer.token_table
        self._compiler = compiler_for(tokenizer)
        self._ends_alone = ends_alone(self._table)
        self._lock = threading.Lock()
        self._last: tuple[ConstraintSpec, Distances] | None = None

    def close(self, spec: ConstraintSpec, ids: Sequence[int], budget: int) -> list[int] | None:
        """A valid answer under ``spec``, of at most ``budget`` ids, that keeps as many of ``ids`` as any; None if there
        is none, or the search for it takes too long.

        ids: what was generated before the budget ended. No end of what is kept has fewer tokens than this one::

            0 ......... kept ......... len(ids)
            |   as is   |   replaced by a shortest end   |
        """
        with self._lock:
            try:
                return self._close(spec, ids, budget)
            except TooFar:
                return None

    def _close(self, spec: ConstraintSpec, ids: Sequence[int], budget: int) -> list[int] | None:
        distances = self._distances(spec)
        states = [distances.machine.start]
        for token in ids[:budget]:
            states.append(distances.machine.after(states[-1], self._table[token]))
        if min(states) < 0:
            return None  # not an answer under this constraint
        kept = self._most(distances, states, budget)
        constraint = self._compiler.compile(spec)
        while kept >= 0:
            matcher = constraint.matcher()
            if not matcher.advance(ids[:kept]):
                return None
            end = Search(distances, matcher).shortest(states[kept], budget - kept)
            if end is not None:
                return [*ids[:kept], *end]
            kept -= 1  # the machine's distance is a lower bound, and was not reached
        return None

    def _most(self, distances: Distances, states: Sequence[int], budget: int) -> int:
        """How many ids may be kept at most, so that an end fits behind them; -1: none fits at all.

        One id more is at most one token nearer to the end: kept ids and distance together never get fewer, and the
        place is found by halving."""

        def fits(kept: int) -> bool:
            return distances.to_end(states[kept], budget - kept) is not None

        fails, stride = len(states), 1
        while True:
            kept = max(0, fails - stride)
            if fits(kept):
                break
            if kept == 0:
                return -1
            fails, stride = kept, 2 * stride
        while fails - kept > 1:
            middle = (kept + fails) // 2
            kept, fails = (middle, fails) if fits(middle) else (kept, middle)
        return kept

    def _distances(self, spec: ConstraintSpec) -> Distances:
        """Of the last specification, or new ones: all records share it, unless fields are copied from the documents."""
        if self._last is None or self._last[0] != spec:
            self._last = (spec, Distances(Machine(spec), self._compiler.vocabulary.trie, ends_alone=self._ends_alone))
        return self._last[1]
