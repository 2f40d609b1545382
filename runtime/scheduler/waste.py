"""Memory that is allocated and not used: the price of blocks."""

from __future__ import annotations

from .books import Books
from .stats import WasteStats


def waste(books: Books) -> WasteStats:
    """Slots in blocks that rows hold (what is merely cached would hide the rest); unused are those past a row's ids
    that are computed or in a sent plan."""
    memory = books.memory
    if memory is None:
        return WasteStats()
    rows = [*books.running.values(), *(b.row for b in books.parked.values() if b.row is not None)]
    size = memory.block_size
    unused = 0
    for row in rows:
        filled = max(row.computed, min(row.ahead, row.branch.length + len(row.flight)))
        unused += max(len(row.table) * size - filled, 0)
    counters = books.counters
    mean = counters.unused_slots / counters.allocated_slots if counters.allocated_slots else 0.0
    return WasteStats(memory.held * size, unused, mean)


def count_waste(books: Books) -> None:
    """Add this step's to the totals."""
    now = waste(books)
    books.counters.allocated_slots += now.allocated
    books.counters.unused_slots += now.unused
