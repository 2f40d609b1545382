"""Shared-prefix groups of a plan: rows whose tables begin with the same blocks, in whole attention segments.

A block of the tree stands for its whole prefix, so two rows agree up to where their tables last name the same one.
Several levels, as in a forked program:

    rows 1-4   |== system prompt ==|
    rows 1-2                       |== branch a ==|
    rows 3-4                       |== branch b ==|
"""

from __future__ import annotations

from collections.abc import Sequence

from ramet.runtime.protocol.messages import Group

from .branch import Row

SEGMENT = 64
"""Tokens per attention segment (see ``ramet.kernels.ops.SEGMENT``, which this folder must not import)."""


class Grouping:
    """Groups of a plan's rows. What was found last is used again while the same rows have the same whole segments."""

    def __init__(self) -> None:
        self._key: tuple[int, ...] = ()
        self._groups: tuple[Group, ...] = ()

    def of(self, rows: Sequence[Row], block_size: int) -> tuple[Group, ...]:
        """Over the stored part of each row's table, which is computed and names one block per prefix."""
        segments = [row.stored * block_size // SEGMENT for row in rows]
        key = (*(row.id for row in rows), *segments)
        if key != self._key:
            groups: list[Group] = []
            _split([entry for entry in zip(rows, segments, strict=True) if entry[1] > 0], 0, block_size, groups)
            self._key, self._groups = key, tuple(groups)
        return self._groups


def _last_block(row: Row, segment: int, block_size: int) -> int:
    return row.table[((segment + 1) * SEGMENT - 1) // block_size]


def _split(rows: list[tuple[Row, int]], segment: int, block_size: int, groups: list[Group]) -> None:
    """``rows`` agree before ``segment``: gather those that agree on it, and follow each gathering as far as it goes."""
    if len(rows) < 2:
        return
    buckets: dict[int, list[tuple[Row, int]]] = {}
    for row, segments in rows:
        if segments > segment:
            buckets.setdefault(_last_block(row, segment, block_size), []).append((row, segments))
    for members in buckets.values():
        if len(members) < 2:
            continue
        stop = _agreement(members, segment + 1, block_size)
        groups.append(Group(tuple(row.id for row, _ in members), segment * SEGMENT, stop * SEGMENT))
        _split(members, stop, block_size, groups)


def _agreement(members: list[tuple[Row, int]], low: int, block_size: int) -> int:
    """Number of leading segments that all members share (at least ``low``), by bisection."""
    high = min(segments for _, segments in members)
    first = members[0][0]
    while low < high:
        middle = (low + high + 1) // 2
        block = _last_block(first, middle - 1, block_size)
        if all(_last_block(row, middle - 1, block_size) == block for row, _ in members):
            low = middle
        else:
            high = middle - 1
    return low
