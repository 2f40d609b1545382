"""The 64-bit parameter of a rule: counters and conditions on them.

A call applies one function to the parameter, and rules that call each other to apply two make the engine fail. So a
counter that is raised together with other bits is unary: raising it is setting its lowest clear bit, one alternative of
the rule per bit. A counter that stands alone is binary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from ramet.runtime.protocol.errors import ConstraintTooComplex

BITS = 64

WAYS = 400
"""Bound of the alternatives that raising several counters at once may take."""


@dataclass(frozen=True, slots=True)
class Unary:
    """Counts up to ``width`` and then stays. Bits ``start`` to ``start + width - 1``."""

    start: int
    width: int

    @property
    def stop(self) -> int:
        return self.start + self.width

    def at_least(self, count: int) -> list[str]:
        """Conditions for a count of ``count`` or more."""
        if count <= 0:
            return []
        return [f"bit_set({self.start + count - 1})"] if count <= self.width else ["not(true)"]

    def below(self, count: int) -> list[str]:
        if count <= 0:
            return ["not(true)"]
        return [f"bit_clear({self.start + count - 1})"] if count <= self.width else []

    def steps(self) -> list[tuple[list[str], int]]:
        """Ways to raise the counter: conditions and the bit to be set."""
        ways = []
        for place in range(self.width):
            bit = self.start + place
            before = [f"bit_set({bit - 1})"] if place else []
            ways.append(([*before, f"bit_clear({bit})"], 1 << bit))
        if self.width:
            ways.append(([f"bit_set({self.stop - 1})"], 0))
        return ways


def raised(counters: Iterable[Unary]) -> list[tuple[list[str], int]]:
    """Ways to raise all the counters by one: conditions and bits to be set."""
    ways: list[tuple[list[str], int]] = []
    for choice in product(*(counter.steps() for counter in counters if counter.width)):
        conditions = [item for step, _ in choice for item in step]
        bits = 0
        for _, bit in choice:
            bits |= bit
        ways.append((conditions, bits))
        if len(ways) > WAYS:
            raise ConstraintTooComplex("too many things to count at once")
    return ways


def call(target: str, bits: int) -> str:
    """A call of a parametric rule with bits set."""
    return f"{target}::bit_or({bits})" if bits else f"{target}::_"


def fold(operator: str, items: list[str]) -> str:
    """``and`` / ``or`` of several conditions (the engine's take two)."""
    folded = items[-1]
    for item in reversed(items[:-1]):
        folded = f"{operator}({item}, {folded})"
    return folded


def condition(items: list[str]) -> str:
    """The condition of an alternative; nothing where there is none."""
    return f" %if {fold('and', items)}" if items else ""
