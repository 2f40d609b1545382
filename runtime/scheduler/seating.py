"""A branch gets a row: what the worker is told of it, and what is counted."""

from __future__ import annotations

from ramet.runtime.protocol.messages import RowStart

from .books import Books
from .branch import Branch, Row


def row_start(books: Books, branch: Branch, row: Row, ids: bytes) -> RowStart:
    """The message that goes before the row's first plan; its constraint goes before it where the worker lacks it."""
    key = branch.constraint_key
    if key and (constraint := books.constraints.to_send(key)) is not None:
        books.to_worker.append(constraint)
    return RowStart(
        row.id,
        ids,
        branch.n_prompt,
        row.computed,
        tuple(row.table[: len(row.table) - len(row.fresh)]),
        branch.sampling,
        branch.stops,
        branch.limits,
        branch.next_logits,
        branch.logprobs,
        key,
    )


def count_admission(books: Books, branch: Branch, row: Row) -> None:
    """What the first row of a branch found in the cache."""
    counters = books.counters
    if branch.seated:
        return
    branch.seated = True
    cached = min(row.computed, branch.n_prompt)
    counters.row_prompt += branch.n_prompt
    counters.row_cached += cached
    branch.cached = cached
    branch.high_water = max(branch.high_water, cached)
    if is_counted(branch):
        counters.tokens.prompt += cached
        counters.tokens.cached += cached


def is_counted(branch: Branch) -> bool:
    """Whether the branch's prompt belongs to the totals: once per request and life."""
    return branch.choice == 0 and not (branch.inherited is not None and branch.inherited.prompt)
