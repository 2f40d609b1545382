"""Branches that wait for a row, and those that wait for somebody else's prefix.

Order: priority first; of one priority the tenant whose turn it is; of one tenant the order of the policy:

``fcfs``         arrival.
``random``       any (deterministic): for comparison.
``cache-aware``  who finds most in the cache: among those beside the branch that was admitted last in the order of ids
                 (depth first: they share most with it), and those that found most when they came. The oldest goes in
                 doubt, and always once it has been passed ``max_overtakes`` times. So nobody is passed more often than
                 that within its tenant and priority.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Literal

from .branch import Branch, Row, State
from .fairness import FairShare

Order = Literal["cache-aware", "fcfs", "random"]
Arrival = tuple[int, int]
"""(order of arrival of the request, choice)."""


class _Spelled:
    """A branch in the order of ids: those that share a prefix stand side by side."""

    __slots__ = ("branch", "space")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        namespace = branch.request.namespace
        self.space = (namespace.salt, namespace.adapter)

    def __lt__(self, other: _Spelled) -> bool:
        if self.space != other.space:
            return self.space < other.space
        if self.branch.ids != other.branch.ids:
            return self.branch.ids < other.branch.ids
        return self.branch.arrival < other.branch.arrival


class Lane:
    """Ready branches of one tenant and priority."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._branches: dict[Arrival, Branch] = {}
        self._spelled: list[_Spelled] = []
        self._cursor: _Spelled | None = None
        """Who was admitted last."""
        self._hot: list[tuple[int, Arrival]] = []
        """Heap of (- cached tokens when last looked, arrival); stale entries are dropped as they surface."""
        self._passers: list[int] = []
        """Arrivals that went ahead of an older one, sorted."""

    def __len__(self) -> int:
        return len(self._arrivals)

    def __iter__(self) -> Iterator[Branch]:
        return (self._branches[arrival] for arrival in self._arrivals)

    def add(self, branch: Branch) -> None:
        insort(self._arrivals, branch.arrival)
        self._branches[branch.arrival] = branch
        insort(self._spelled, _Spelled(branch))
        self._heat(branch)

    def note(self, branch: Branch, cached: int) -> None:
        """A look at the cache found so many tokens of ``branch``."""
        if cached != branch.cached_hint:
            branch.cached_hint = cached
            self._heat(branch)

    def _heat(self, branch: Branch) -> None:
        heapq.heappush(self._hot, (-branch.cached_hint, branch.arrival))
        if len(self._hot) > 2 * len(self._branches) + 64:  # the stale ones are most, and need never surface
            self._hot = [(-live.cached_hint, arrival) for arrival, live in self._branches.items()]
            heapq.heapify(self._hot)

    def hottest(self) -> Branch:
        """Who found most when it was looked at last."""
        while True:
            cached, arrival = self._hot[0]
            branch = self._branches.get(arrival)
            if branch is not None and branch.cached_hint == -cached:
                return branch
            heapq.heappop(self._hot)

    def remove(self, branch: Branch) -> None:
        del self._branches[branch.arrival]
        del self._arrivals[bisect_left(self._arrivals, branch.arrival)]
        del self._spelled[bisect_left(self._spelled, _Spelled(branch))]

    def oldest(self) -> Branch:
        return self._branches[self._arrivals[0]]

    def at(self, index: int) -> Branch:
        return self._branches[self._arrivals[index]]

    def neighbours(self) -> list[Branch]:
        """Those that stand beside the branch that was admitted last: they share most with it."""
        if self._cursor is None:
            return []
        at = bisect_left(self._spelled, self._cursor)
        return [self._spelled[i].branch for i in (at, at - 1) if 0 <= i < len(self._spelled)]

    def passed(self, branch: Branch) -> int:
        """How many later arrivals went ahead of ``branch``."""
        return len(self._passers) - bisect_right(self._passers, branch.request.seq)

    def admitted(self, branch: Branch) -> bool:
        """``branch`` (removed already) got a row; True if it went ahead of an older request."""
        self._cursor = _Spelled(branch)
        if not self._arrivals or self._arrivals[0][0] >= branch.request.seq:
            return False
        insort(self._passers, branch.request.seq)
        if len(self._passers) > 4096:
            del self._passers[:1024]
        return True


class BranchQueue:
    """A branch that comes back takes its old place. One that waits for a prefix is not offered; it holds nothing."""

    def __init__(self, order: Order, max_overtakes: int) -> None:
        self._order = order
        self._max_overtakes = max_overtakes
        self._levels: dict[int, dict[str, Lane]] = {}
        self._idle: dict[tuple[int, str], Lane] = {}
        """Lanes that ran empty: they remember who was admitted last, and who was passed."""
        self._dice = random.Random(0)
        self._ready = 0
        self._waiting = 0
        self.shares = FairShare()
        self.version = 0
        """Changes with every branch that comes or goes."""

    def __len__(self) -> int:
        return self._ready + self._waiting

    def __iter__(self) -> Iterator[Branch]:
        """Ready branches, by priority, tenant and arrival."""
        for priority in sorted(self._levels, reverse=True):
            for lane in self._levels[priority].values():
                yield from lane

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def ready(self) -> int:
        return self._ready

    def add(self, branch: Branch) -> None:
        tenant = branch.request.namespace.tenant
        level = self._levels.setdefault(branch.priority, {})
        lane = level.get(tenant)
        if lane is None:
            idle = (branch.priority, tenant)
            lane = level[tenant] = self._idle.pop(idle) if idle in self._idle else Lane()
        lane.add(branch)
        branch.state = State.QUEUED
        self._ready += 1
        self.version += 1

    def remove(self, branch: Branch) -> None:
        """Take a queued or waiting branch out."""
        self.version += 1
        if branch.state is State.WAITING:
            row = branch.waiting_on
            assert row is not None
            row.waiters = [(tokens, other) for tokens, other in row.waiters if other is not branch]
            branch.waiting_on = None
            self._waiting -= 1
            return
        tenant = branch.request.namespace.tenant
        level = self._levels[branch.priority]
        lane = level[tenant]
        lane.remove(branch)
        self._ready -= 1
        if not len(lane):
            del level[tenant]
            self._idle[branch.priority, tenant] = lane
            if len(self._idle) > 1024:
                del self._idle[next(iter(self._idle))]
            if not level:
                del self._levels[branch.priority]

    # ------------------------------------------------------------ who is next

    def candidates(self) -> list[Branch]:
        """Who may be admitted next, the one to prefer in doubt first; empty if nobody is ready."""
        if not self._levels:
            return []
        level = self._levels[max(self._levels)]
        lane = level[self.shares.next(level)]
        oldest = lane.oldest()
        if self._order == "random":
            return [lane.at(self._dice.randrange(len(lane)))]
        if self._order == "fcfs" or lane.passed(oldest) >= self._max_overtakes:
            return [oldest]
        found = [oldest]
        for branch in (lane.hottest(), *lane.neighbours()):
            if branch not in found:
                found.append(branch)
        return found

    def note(self, branch: Branch, cached: int) -> None:
        """A look at the cache found so many tokens of a ready branch."""
        self._levels[branch.priority][branch.request.namespace.tenant].note(branch, cached)

    def admit(self, branch: Branch) -> bool:
        """Take out a branch that got a row; True if it went ahead of an older one of its lane."""
        tenant = branch.request.namespace.tenant
        lane = self._levels[branch.priority][tenant]
        self.remove(branch)
        return lane.admitted(branch)

    # ------------------------------------------------------------ waiting for a prefix

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
