"""One kind of array, ready to be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ramet.runtime.constrain.schema.arrays import ArrayBranch, Counted
from ramet.runtime.constrain.schema.context import Conjunction, Context
from ramet.runtime.constrain.schema.graph import Node
from ramet.runtime.protocol.errors import ConstraintTooComplex

PREFIX = 500
"""Bound of items that are spoken of one by one."""

TALLIES = 4
"""Bound of the counts kept in one array."""


@dataclass(frozen=True, slots=True)
class Move:
    """One way to write an item: its value, and the tallies that count it."""

    value: Conjunction
    counted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tally:
    low: int
    high: int | None


@dataclass(slots=True)
class ArrayShape:
    """``prefix``: the ways to write each of the first items; ``rest``: those of every later item, if there is one.

    ``unique``: the schema that asks for items that differ.
    """

    prefix: list[list[Move]]
    rest: list[Move]
    low: int
    high: int | None
    tallies: list[Tally]
    unique: Node | None

    @property
    def identity(self) -> object:
        """The same for arrays that are written alike."""
        prefix, unique = tuple(map(tuple, self.prefix)), self.unique and self.unique.index
        return prefix, tuple(self.rest), self.low, self.high, tuple(self.tallies), unique

    def children(self) -> Iterator[Conjunction]:
        for moves in (*self.prefix, self.rest):
            for move in moves:
                yield move.value

    def productive(self, known: set[Conjunction]) -> bool:
        needed = self.prefix[: self.low]
        if self.low > len(self.prefix):
            needed = [*needed, self.rest]
        if not all(any(move.value in known for move in moves) for moves in needed):
            return False
        return all(
            tally.low == 0
            or any(
                index in move.counted and move.value in known for moves in (*self.prefix, self.rest) for move in moves
            )
            for index, tally in enumerate(self.tallies)
        )


def array_shape(branch: ArrayBranch) -> ArrayShape | None:
    """None if no array fits."""
    context = branch.context
    layers = branch.closed_layers()
    counted = [item for item in branch.counted if item.low > 0 or item.high is not None]
    if len(counted) > TALLIES:
        raise ConstraintTooComplex(f"an array with more than {TALLIES} 'contains'")
    if any(item.high is not None and item.low > item.high for item in counted):
        return None
    size = max([len(layer.prefix) for layer in layers] + [item.start for item in counted], default=0)
    if size > PREFIX:
        raise ConstraintTooComplex(f"an array of which more than {PREFIX} items are spoken of one by one")
    low, high = branch.low, branch.high
    prefix: list[list[Move]] = []
    for index in range(size):
        moves = _moves(context, branch.conjunction(index, layers), counted, index)
        if not moves:
            high = index if high is None else min(high, index)
            break
        prefix.append(moves)
    rest = _moves(context, branch.conjunction(size, layers), counted, size)
    if not rest:
        high = len(prefix) if high is None else min(high, len(prefix))
    if high is not None and high <= len(prefix):
        prefix, rest = prefix[:high], []
    low = max([low, *(item.low for item in counted)])
    if high is not None and low > high:
        return None
    tallies = [Tally(item.low, item.high) for item in counted]
    unique = branch.unique[0] if branch.unique and (high is None or high > 1) else None
    return ArrayShape(prefix, rest, low, high, tallies, unique)


def _moves(context: Context, value: Conjunction, counted: list[Counted], index: int) -> list[Move]:
    found = []
    for choice in product((True, False), repeat=len(counted)):
        lits = list(value)
        hits = []
        for position, (item, yes) in enumerate(zip(counted, choice, strict=True)):
            if index < item.start:
                if yes:
                    break
            elif yes:
                lits.append(item.lit)
                hits.append(position)
            elif item.high is not None:
                lits.append(item.lit ^ 1)
        else:
            conjunction = context.canonical(lits)
            if context.possible(conjunction):
                found.append(Move(conjunction, tuple(hits)))
    return found
