"""A plan while it is being made: the token budget of one step and who gets how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.runtime.protocol.messages import PlanRow, StepPlan, ToWorker

from .books import Books
from .branch import Row


@dataclass(slots=True)
class _Entry:
    row: Row
    ceiling: int
    cost: int


class Draft:
    """Rows in the order they were added. ``budget``: tokens of the step that are not given away yet."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._entries: dict[int, _Entry] = {}

    def __contains__(self, row: Row) -> bool:
        return row.id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, row: Row, ceiling: int, cost: int) -> None:
        """Compute up to ``ceiling`` ids of the row, of which ``cost`` are known (spare room for forced ids is free)."""
        self._entries[row.id] = _Entry(row, ceiling, cost)
        self.budget -= cost

    def remove(self, row: Row) -> None:
        entry = self._entries.pop(row.id, None)
        if entry is not None:
            self.budget += entry.cost

    def seal(self, books: Books) -> tuple[list[ToWorker], StepPlan]:
        """Number the plan, book it as sent; what the worker must be told before it, and the plan."""
        memory = books.memory
        assert memory is not None
        books.step += 1
        before = books.to_worker
        books.to_worker = []
        planned: list[PlanRow] = []
        copies = []
        for entry in self._entries.values():
            row = entry.row
            if row.start is not None:
                before.append(row.start)
                row.start = None
            planned.append(PlanRow(row.id, entry.ceiling, tuple(row.fresh), tuple(row.replaced)))
            if row.copy is not None:
                copies.append(row.copy)
                row.copy = None
            row.fresh.clear()
            row.replaced.clear()
            row.flight.append((books.step, entry.ceiling))
            row.ahead += entry.ceiling
        rows = [entry.row for entry in self._entries.values()]
        groups = books.grouping.of(rows, memory.block_size) if books.config.switches.grouping and len(rows) > 1 else ()
        memory.sent(books.step, rows)
        return before, StepPlan(books.step, tuple(planned), tuple(copies), groups)
