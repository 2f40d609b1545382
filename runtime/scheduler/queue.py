"""Branches that wait for a row, in order; and those that wait for somebody else's prefix."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from .branch import Branch, Row, State


class BranchQueue:
    """Ordered by priority, then arrival: a branch that comes back takes its old place.

    A branch that waits for a prefix keeps its place in the order but is not offered; it holds nothing.
    """

    def __init__(self) -> None:
        self._keys: list[tuple[int, int, int]] = []
        self._ready: dict[tuple[int, int, int], Branch] = {}
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._keys) + self._waiting

    def __iter__(self) -> Iterator[Branch]:
        """Ready branches, first one first."""
        return (self._ready[key] for key in self._keys)

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def ready(self) -> int:
        return len(self._keys)

    def add(self, branch: Branch) -> None:
        key = branch.order
        insort(self._keys, key)
        self._ready[key] = branch
        branch.state = State.QUEUED

    def first(self) -> Branch | None:
        return self._ready[self._keys[0]] if self._keys else None

    def remove(self, branch: Branch) -> None:
        """Take a queued or waiting branch out."""
        if branch.state is State.WAITING:
            row = branch.waiting_on
            assert row is not None
            row.waiters = [(tokens, other) for tokens, other in row.waiters if other is not branch]
            branch.waiting_on = None
            self._waiting -= 1
            return
        key = branch.order
        del self._ready[key]
        del self._keys[bisect_left(self._keys, key)]

    def wait(self, branch: Branch, row: Row, tokens: int) -> None:
        """Offer a ready branch again once ``row`` has computed ``tokens``, or leaves."""
        self.remove(branch)
        branch.state = State.WAITING
        branch.waiting_on = row
        row.waiters.append((tokens, branch))
        self._waiting += 1

    def wake(self, row: Row, *, everybody: bool = False) -> None:
        """Offer those whose point of divergence is computed now (or all who wait for ``row``) again."""
        if not row.waiters:
            return
        stay: list[tuple[int, Branch]] = []
        for tokens, branch in row.waiters:
            if everybody or tokens <= row.computed:
                branch.waiting_on = None
                self._waiting -= 1
                self.add(branch)
            else:
                stay.append((tokens, branch))
        row.waiters = stay
