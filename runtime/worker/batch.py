"""From the rows of a step to one Batch: block tables by slot, ids, positions and the logits that are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ramet.kernels.ops import SEGMENT, Batch, GroupSpec
from ramet.runtime.protocol.messages import Group, PlanRow, RowStart

from .row import Row, WaitingRow


@dataclass(frozen=True)
class RowWork:
    """What one row does in a step: compute ids[computed:stop], score the known ids after ``scored`` positions, then
    sample if the tail is empty."""

    row: Row
    stop: int
    scored: tuple[int, ...]
    samples: bool


@dataclass(frozen=True)
class StepInput:
    """``scored``: indices into the logits that score a known id, in row order; ``sampled``: those to draw from."""

    batch: Batch
    scored: NDArray[np.intp]
    sampled: NDArray[np.intp]


class BlockTables:
    """Block table of every row, by slot."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._table = np.zeros((0, 0), np.int32)

    @property
    def slots(self) -> int:
        return len(self._table)

    def resize(self, slots: int) -> None:
        self._grow(slots, self._table.shape[1])

    def start(self, slot: int, start: RowStart) -> None:
        self._reserve(len(start.blocks))
        self._table[slot, : len(start.blocks)] = start.blocks

    def update(self, row: Row | WaitingRow, plan: PlanRow) -> None:
        """Append granted blocks, exchange replaced ones."""
        if plan.blocks:
            stop = row.blocks + len(plan.blocks)
            self._reserve(stop)
            self._table[row.slot, row.blocks : stop] = plan.blocks
            row.blocks = stop
        for index, block in plan.replaced:
            if not 0 <= index < row.blocks:
                raise IndexError(f"block {index} of row {row.start.row} is to be replaced, it has {row.blocks}")
            self._table[row.slot, index] = block

    def room(self, row: Row) -> int:
        """Ids that the row's blocks can hold."""
        return row.blocks * self._block_size

    def gather(self, slots: NDArray[np.intp], width: int) -> NDArray[np.int32]:
        return self._table[slots, :width]

    def _reserve(self, width: int) -> None:
        if width > self._table.shape[1]:
            self._grow(len(self._table), max(width, 2 * self._table.shape[1], 64))

    def _grow(self, slots: int, width: int) -> None:
        old = self._table
        self._table = np.zeros((slots, width), np.int32)
        self._table[: old.shape[0], : old.shape[1]] = old


def build(works: Sequence[RowWork], groups: Sequence[Group], tables: BlockTables) -> StepInput:
    """One Batch of all rows that compute something (each of ``works`` does)."""
    ids: list[int] = []
    positions: list[int] = []
    row_start = [0]
    logit_rows: list[int] = []
    scored: list[int] = []
    sampled: list[int] = []
    for work in works:
        row, stop = work.row, work.stop
        base = len(ids) - row.computed
        ids += row.ids[row.computed : stop]
        positions += range(row.computed, stop)
        row_start.append(len(ids))
        for position in work.scored:
            scored.append(len(logit_rows))
            logit_rows.append(base + position)
        if work.samples:
            sampled.append(len(logit_rows))
            logit_rows.append(base + stop - 1)
    rows = [work.row for work in works]
    batch = Batch(
        ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int32),
        row_start=np.array(row_start, np.int32),
        context=np.array([work.stop for work in works], np.int32),
        block_tables=tables.gather(np.array([row.slot for row in rows], np.intp), max(row.blocks for row in rows)),
        logit_rows=np.array(logit_rows, np.int32),
        groups=_groups(rows, groups) if groups else (),
    )
    return StepInput(batch, np.array(scored, np.intp), np.array(sampled, np.intp))


def _groups(rows: Sequence[Row], groups: Sequence[Group]) -> tuple[GroupSpec, ...]:
    """The groups that are left when rows that do not compute are taken out."""
    index = {row.start.row: i for i, row in enumerate(rows)}
    specs: list[GroupSpec] = []
    for group in groups:
        members = [index[row] for row in group.rows if row in index]
        start, stop = group.start, group.stop
        if len(members) < 2 or start % SEGMENT or stop % SEGMENT or start >= stop:
            continue
        if any(rows[i].computed < stop for i in members):
            continue
        specs.append(GroupSpec(np.array(members, np.int32), start, stop))
    return tuple(specs)
