"""Admission by the worst-case peak of the running batch.

Let every row run on to its end, the shortest first. Just before row i ends, all rows that live at least as long have
grown as much as it will; the pool must hold the largest of these sums:

    rows by remaining tokens, longest first:   r1 >= r2 >= r3
    peak = max over i of  (blocks held by r1..ri now  +  what r1..ri grow in ri's remaining tokens)

A row's remaining tokens are bounded by its limit. Where the limit is loose, what finished rows say is used instead:
the length that nine of ten did not pass, among those that came as far as this row has.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .branch import Branch, Row

UNKNOWN = 256
"""Tokens expected of a row with a loose limit until enough others have ended."""
ENOUGH = 16
NEVER = 1 << 60


class Lengths:
    """Generated lengths of the last branches that ended. One that its limit cut counts as endless."""

    def __init__(self, window: int = 512, quantile: float = 0.9) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._window = window
        self._quantile = quantile

    def add(self, generated: int, *, cut: bool) -> None:
        value = NEVER if cut else generated
        if len(self._recent) == self._window:
            self._sorted.remove(self._recent.popleft())
        self._recent.append(value)
        insort(self._sorted, value)

    def remaining(self, branch: Branch) -> int:
        """Tokens that the branch is expected to generate yet, at most its limit's."""
        limit = branch.final_length - branch.length
        if len(self._sorted) < ENOUGH:
            return min(limit, max(UNKNOWN - branch.generated, 16))
        passed = bisect_right(self._sorted, branch.generated)
        if passed == len(self._sorted):
            return limit
        index = passed + int((len(self._sorted) - passed) * self._quantile)
        return min(limit, self._sorted[min(index, len(self._sorted) - 1)] - branch.generated)


@dataclass(frozen=True, slots=True)
class Demand:
    """``own``: blocks that a row holds now (its prompt's counted in full) and nobody else does; ``slack``: free slots
    in them; ``remaining``: tokens it may still grow."""

    own: int
    slack: int
    remaining: int


def peak_blocks(demands: Sequence[Demand], block_size: int) -> int:
    """Most blocks that the rows hold at once, if each grows by its remaining tokens in step with the others."""
    peak = held = 0
    living: list[int] = []
    for demand in sorted(demands, key=lambda d: -d.remaining):
        held += demand.own
        living.append(demand.slack)
        grown = sum(_growth(demand.remaining - slack, block_size) for slack in living)
        peak = max(peak, held + grown)
    return peak


def fits(demands: Sequence[Demand], capacity: int, block_size: int) -> bool:
    """Whether the peak stays within ``capacity`` blocks; the plain sum of all ends answers most cases at once."""
    most = sum(d.own + _growth(d.remaining - d.slack, block_size) for d in demands)
    return most <= capacity or peak_blocks(demands, block_size) <= capacity


def _growth(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size) if tokens > 0 else 0


def demand_of(branch: Branch, row: Row | None, matched: int, remaining: int, block_size: int) -> Demand:
    """Of a running row, or of a candidate that matched ``matched`` blocks."""
    needed = -(-branch.length // block_size)
    if row is not None:
        needed = max(needed, len(row.table))
        matched = row.matched
    return Demand(needed - matched, needed * block_size - branch.length, remaining)
