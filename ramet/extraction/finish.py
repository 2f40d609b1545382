"""When the budget of an answer ends before the answer does: the shortest end that the constraint allows."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramet.extraction.partial import read

if TYPE_CHECKING:
    from ramet.runtime.constrain.base import CompiledConstraint, Matcher
    from ramet.runtime.tokenizer import Tokenizer

_STATES = 3000
"""States of the constraint that one search may visit."""

_AHEAD = 8
"""Ids that a state may have cost more than another for each value that it has more: what is further on goes first."""

_LONG = 16
_FEW = 48
"""Where no more ids than this are allowed, all of them are tried."""


class Closer:
    """Ends cut answers of any constraint over one tokeniser."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._words = (tokenizer.vocab_size + 31) // 32
        self._table = table = tokenizer.token_table
        self._ends = np.array(sorted(tokenizer.end_ids), dtype=np.int64)
        self._lengths = np.array([len(text) for text in table], dtype=np.int64)
        first = [text[:1] for text in table]
        self._end_string, self._end_both, self._end_member = (
            np.array([byte in kind for byte in first], dtype=bool) for kind in ((b'"',), (b"}", b"]"), (b",",))
        )

    def close(self, constraint: CompiledConstraint, ids: Sequence[int], budget: int) -> list[int] | None:
        """A valid answer under ``constraint``, of at most ``budget`` ids, that keeps what it can of ``ids``; None if
        there is none.

        ids: what was generated before the budget ended::

            0 ......... kept ......... len(ids)
            |   as is   |   replaced by the shortest end   |
        """
        kept = min(len(ids), budget)
        while kept >= 0:
            matcher = constraint.matcher()
            if kept and not matcher.advance(ids[:kept]):
                return None  # not an answer under this constraint
            end = self._shortest(matcher, b"".join(self._table[token] for token in ids[:kept]))
            if end is None:
                return None
            if kept + len(end) <= budget:
                return [*ids[:kept], *end]
            # As many ids are given up as the end is too long, and looked again: a few looks, instead of one per id.
            kept = min(kept - 1, max(0, budget - len(end))) if kept else -1
        return None

    def _shortest(self, start: Matcher, before: bytes) -> list[int] | None:
        """Few ids that complete the text ``before``: the best of what is looked at.

        States at the same place of the record that allow the same next ids are taken for one: the first digit of a
        number, say, makes no difference to how the record can end.
        """
        order = itertools.count()
        states: list[tuple[int, int, int, Matcher, list[int]]] = [(0, next(order), 0, start, [])]
        seen: set[tuple[object, ...]] = set()
        for _ in range(_STATES):
            if not states:
                return None
            _, _, cost, matcher, ids = heapq.heappop(states)
            if matcher.can_end:
                return ids
            place = _place(before + b"".join(self._table[token] for token in ids))
            forced = matcher.forced()
            allowed = self._allowed(matcher)
            key = (tuple(forced), allowed.tobytes(), place)
            if key in seen:
                continue
            seen.add(key)
            for step in [forced] if forced else [[token] for token in self._candidates(allowed, place)]:
                after = matcher.fork()
                if after.advance(step):
                    spent = cost + len(step)
                    heapq.heappush(states, (spent - _AHEAD * place.values, next(order), spent, after, [*ids, *step]))
        return None

    def _allowed(self, matcher: Matcher) -> NDArray[np.int64]:
        """Ids that may come next, end ids aside."""
        row = np.zeros(self._words, dtype=np.uint32)
        matcher.fill_mask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(self._table)].astype(bool)
        bits[self._ends] = False
        return np.flatnonzero(bits)

    def _candidates(self, allowed: NDArray[np.int64], place: _Place) -> list[int]:
        """Ids worth trying. Where the string, array or object that is open may close, nothing else is; where only the
        next member may come, its comma. Else all ids where there are few, or the longest and the shortest (some
        strings must have a length before they may end)."""
        for kind in (self._end_string,) if place.in_string else (self._end_both, self._end_member):
            if len(found := allowed[kind[allowed]]):
                return [int(token) for token in self._without_more(found)[:_FEW]]
        if len(allowed) <= _FEW:
            return [int(token) for token in allowed]
        short = allowed[self._lengths[allowed] <= _LONG]
        by_length = np.argsort(self._lengths[short], kind="stable")
        return list(dict.fromkeys(int(token) for token in (*short[by_length[-4:]], *short[by_length[:4]])))

    def _without_more(self, found: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a string and what holds it may both end, no token that ends the string and goes on to a next member."""
        second = [self._table[token][1:2] for token in found]
        if not any(byte in b"]}" for byte in second if byte):
            return found
        return found[[byte != b"," for byte in second]]


class _Place(NamedTuple):
    """Where in the record a text ends (its path), and how many values are there."""

    path: object
    values: int
    in_string: bool


def _place(text: bytes) -> _Place:
    written = text.decode("utf-8", "ignore")
    try:
        found = read(written)
    except ValueError:  # no JSON
        return _Place(text, 0, False)
    last = found.leaves[-1] if found.leaves else None
    in_string = last is not None and last.path == found.cut and written[last.start] == '"'
    return _Place(found.cut, len(found.leaves), in_string)
