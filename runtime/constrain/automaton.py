"""A language as a deterministic automaton over bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.constrain.strings.chars import CharSet, charset
from ramet.runtime.constrain.strings.lang import NOTHING, Lang, derive, nullable
from ramet.runtime.constrain.strings.walk import first_sets, representatives
from ramet.runtime.protocol.errors import ConstraintTooComplex

Sequences = frozenset["tuple[tuple[tuple[int, int], ...], int]"]
"""(byte ranges still to come, state behind them): what is left of a character after its first bytes."""

_SIZES = ((0x80, 0x7FF, 2), (0x800, 0xFFFF, 3), (0x10000, 0x10FFFF, 4))


@dataclass(frozen=True, eq=False)
class Automaton:
    """``edges`` [S, 256] int32: the state after a byte, -1 where there is none. State 0 is the first."""

    edges: NDArray[np.int32]
    final: NDArray[np.bool_]

    def follow(self, states: NDArray[np.int32], read: NDArray[np.int32]) -> NDArray[np.int32]:
        """The state behind each state and byte."""
        found: NDArray[np.int32] = self.edges[states, read]
        return found


def automaton(lang: Lang, limit: int) -> Automaton:
    """Raises ConstraintTooComplex beyond ``limit`` states."""
    return _Builder(limit).build(lang)


class _Builder:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers: dict[Lang | Sequences, int] = {}
        self._waiting: list[Lang | Sequences] = []
        self._edges: list[NDArray[np.int32]] = []

    def build(self, lang: Lang) -> Automaton:
        self._number(lang)
        final: list[bool] = []
        while len(self._edges) < len(self._numbers):
            state = self._waiting[len(self._edges)]
            if isinstance(state, frozenset):
                final.append(False)
                self._edges.append(self._inside(state))
            else:
                final.append(nullable(state))
                self._edges.append(self._between(state))
        return Automaton(np.array(self._edges), np.array(final))

    def _number(self, state: Lang | Sequences) -> int:
        found = self._numbers.get(state)
        if found is None:
            found = self._numbers[state] = len(self._numbers)
            self._waiting.append(state)
            if found >= self._limit:
                raise ConstraintTooComplex(f"an automaton of more than {self._limit} states")
        return found

    def _between(self, lang: Lang) -> NDArray[np.int32]:
        """Edges of a state between two characters."""
        edges = np.full(256, -1, np.int32)
        beyond: list[tuple[tuple[tuple[int, int], ...], int]] = []
        for group, target in partition(lang):
            number = self._number(target)
            for first, last in group.ranges:
                if first < 0x80:
                    edges[first : min(last, 0x7F) + 1] = number
                if last >= 0x80:
                    beyond += [(ranges, number) for ranges in utf8_ranges(max(first, 0x80), last)]
        self._lead(edges, beyond)
        return edges

    def _inside(self, sequences: Sequences) -> NDArray[np.int32]:
        """Edges of a state within a character."""
        edges = np.full(256, -1, np.int32)
        self._lead(edges, sequences)
        return edges

    def _lead(self, edges: NDArray[np.int32], sequences: Iterable[tuple[tuple[tuple[int, int], ...], int]]) -> None:
        """Edges by the first byte of the sequences."""
        rests: dict[int, list[tuple[tuple[tuple[int, int], ...], int]]] = {}
        for (head, *rest), target in sequences:
            for byte in range(head[0], head[1] + 1):
                if rest:
                    rests.setdefault(byte, []).append((tuple(rest), target))
                else:
                    edges[byte] = target
        for byte, after in rests.items():
            edges[byte] = self._number(frozenset(after))


def partition(lang: Lang) -> list[tuple[CharSet, Lang]]:
    """Sets of characters and the derivatives they lead to, dead ends left out."""
    groups = [group for group in first_sets(lang) if isinstance(group, CharSet)]
    singles = {group for group in first_sets(lang) if isinstance(group, int)}
    points = representatives(lang)
    if points is None:
        raise ConstraintTooComplex("too many classes of characters in one place")
    found: dict[Lang, list[tuple[int, int]]] = {}
    for point in points:
        target = derive(lang, point)
        if target == NOTHING:
            continue
        found.setdefault(target, []).extend(_class_of(point, groups, singles).ranges)
    return [(charset(ranges), target) for target, ranges in found.items()]


def _class_of(point: int, groups: list[CharSet], singles: set[int]) -> CharSet:
    """All characters that no set tells from ``point``."""
    if point in singles:
        return charset([(point, point)])
    same = charset([(0, 0x10FFFF)])
    for group in groups:
        same = same & group if point in group else same - group
    return same - charset((single, single) for single in singles)


def utf8_ranges(first: int, last: int) -> list[tuple[tuple[int, int], ...]]:
    """The UTF-8 of the code points from ``first`` to ``last`` (beyond ASCII), as sequences of byte ranges."""
    found: list[tuple[tuple[int, int], ...]] = []
    for low, high, size in _SIZES:
        start, stop = max(first, low), min(last, high)
        if start <= stop:
            found += _split(start, stop, size - 1, size)
    return found


def _split(first: int, last: int, places: int, size: int) -> list[tuple[tuple[int, int], ...]]:
    """``places``: continuation bytes that vary within the span."""
    if places == 0:
        return [_bytes(first, last, size)]
    block = 1 << 6 * places
    if first // block == last // block:
        return _split(first, last, places - 1, size)
    found: list[tuple[tuple[int, int], ...]] = []
    if first % block:
        edge = (first // block + 1) * block - 1
        found += _split(first, edge, places - 1, size)
        first = edge + 1
    tail: list[tuple[tuple[int, int], ...]] = []
    if (last + 1) % block:
        edge = last // block * block
        tail = _split(edge, last, places - 1, size)
        last = edge - 1
    if first <= last:
        found.append(_bytes(first, last, size))
    return found + tail


def _bytes(first: int, last: int, size: int) -> tuple[tuple[int, int], ...]:
    """One sequence for a span whose ends differ in whole blocks only."""
    low, high = chr(first).encode("utf-8", "surrogatepass"), chr(last).encode("utf-8", "surrogatepass")
    assert len(low) == len(high) == size
    return tuple(zip(low, high, strict=True))
