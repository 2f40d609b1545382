"""The chaos tests can fail: each of these planted faults is caught within 2,000 operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ramet.radix import RadixTree, TailMatch
from ramet.radix.node import Node
from ramet.runtime.scheduler.branch import Branch, Row
from ramet.runtime.scheduler.lifecycle import Lifecycle
from ramet.runtime.scheduler.memory import Memory
from ramet.runtime.scheduler.planner import Planner
from ramet.runtime.scheduler.queue import BranchQueue
from test_scheduler_chaos import play

Patch = pytest.MonkeyPatch


def double_free(patch: Patch) -> None:
    """A row's private blocks are given back twice."""
    original = Memory._tear_down

    def faulty(self: Memory, row: Row) -> None:
        blocks = row.table[row.stored :]
        original(self, row)
        self._free(blocks)

    patch.setattr(Memory, "_tear_down", faulty)


def missing_lock(patch: Patch) -> None:
    """A lease does not lock what is above its node."""

    def faulty(self: RadixTree, node: Node) -> None:
        node.leases += 1
        self._locked += len(node.blocks) if node.leases == 1 else 0
        if node.queue is not None:
            node.queue.discard(node)

    patch.setattr(RadixTree, "_lock", faulty)


def lock_lost_in_a_split(patch: Patch) -> None:
    original = RadixTree._split

    def faulty(self: RadixTree, node: Node, offset: int) -> Node:
        upper = original(self, node, offset)
        upper.locked_children = 0
        return upper

    patch.setattr(RadixTree, "_split", faulty)


def wrong_namespace(patch: Patch) -> None:
    """Tenants share a root."""
    original = Memory._namespace
    patch.setattr(Memory, "_namespace", lambda self, branch: original(self, branch)._replace(tenant=""))


def stale_tail(patch: Patch) -> None:
    """One id more is copied than agrees."""
    original = Memory._copy_source

    def faulty(self: Memory, branch: Branch, match: Any) -> Any:
        hold, source = original(self, branch, match)
        if source is not None and source.tokens < min(self.block_size, branch.match_limit - match.tokens):
            source = TailMatch(source.block, source.tokens + 1)
        return hold, source

    patch.setattr(Memory, "_copy_source", faulty)


def lost_cancel(patch: Patch) -> None:
    """A branch that waits for a prefix cannot be cancelled."""
    original = Lifecycle.finish

    def faulty(self: Lifecycle, branch: Branch, *args: Any, **kwargs: Any) -> None:
        if branch.waiting_on is None:
            original(self, branch, *args, **kwargs)

    patch.setattr(Lifecycle, "finish", faulty)


def freed_while_a_plan_names_it(patch: Patch) -> None:
    def faulty(self: Memory, row: Row) -> None:
        row.leaving = True
        self.withdraw(row)
        self._tear_down(row)

    patch.setattr(Memory, "leave", faulty)


def waiter_that_keeps_a_lease(patch: Patch) -> None:
    original = Planner._waits

    def faulty(self: Planner, branch: Branch, match: Any, memory: Memory) -> bool:
        waits = original(self, branch, match, memory)
        if waits:
            memory.tree.acquire(match)
        return waits

    patch.setattr(Planner, "_waits", faulty)


def waiters_forgotten_when_their_owner_goes(patch: Patch) -> None:
    original = BranchQueue.wake

    def faulty(self: BranchQueue, row: Row, *, everybody: bool = False) -> None:
        if not everybody:
            original(self, row)

    patch.setattr(BranchQueue, "wake", faulty)


def source_not_pinned(patch: Patch) -> None:
    """The tail of a branch is copied from without holding it."""
    original = Memory._copy_source

    def faulty(self: Memory, branch: Branch, match: Any) -> Any:
        hold, source = original(self, branch, match)
        if hold is not None and hold.lease is not None:
            self.tree.release(hold.lease)
            hold = None
        return hold, source

    patch.setattr(Memory, "_copy_source", faulty)
    seat = Memory.seat

    def seated(self: Memory, row_id: int, branch: Branch, match: Any, *, with_tail: bool = True) -> Row:
        row = seat(self, row_id, branch, match, with_tail=with_tail)
        if with_tail and row.copy is None and row.hold is None:
            tail = self.tree.match(match.namespace, match.ids, match.limit).tail if match.version >= 0 else None
            target = self._take(1) if tail is not None and row.table == list(match.blocks) else None
            if tail is not None and target is not None:
                from ramet.runtime.protocol.messages import BlockCopy

                row.table += target
                row.computed += tail.tokens
                row.ahead = row.computed
                row.copy = BlockCopy(tail.block, target[0], tail.tokens)
        return row

    patch.setattr(Memory, "seat", seated)


def duplicate_kept_in_the_table(patch: Patch) -> None:
    """A duplicate is freed while the row's table still names it."""
    original = Memory.store

    def faulty(self: Memory, row: Row) -> None:
        original(self, row)
        row.replaced.clear()

    patch.setattr(Memory, "store", faulty)


def locked_leaf_evicted(patch: Patch) -> None:
    original = RadixTree._unlock

    def faulty(self: RadixTree, node: Node) -> None:
        original(self, node)
        if node.leases and not node.children and node.parent is not None:
            node.shelf.order.push(node)

    patch.setattr(RadixTree, "_unlock", faulty)


def one_block_too_few(patch: Patch) -> None:
    original = Memory.grow

    def faulty(self: Memory, row: Row, tokens: int) -> bool:
        return original(self, row, tokens - 1)

    patch.setattr(Memory, "grow", faulty)


def ended_twice(patch: Patch) -> None:
    """A branch that was cancelled while its last plan was under way ends again with the plan's result."""
    original = Lifecycle._park_or_leave

    def faulty(self: Lifecycle, branch: Branch) -> None:
        original(self, branch)
        self._books.emit(branch.request.client, _again(branch))

    patch.setattr(Lifecycle, "_park_or_leave", faulty)


def _again(branch: Branch) -> Any:
    from ramet.runtime.protocol.messages import Finished

    return Finished(branch.request.id, branch.choice, "length", branch.usage())


def kept_blocks_leak(patch: Patch) -> None:
    """A kept branch is released without its blocks."""

    def faulty(self: Lifecycle, branch: Branch) -> None:
        if branch.row is not None and self._books.parked.pop(branch.row.id, None) is not None:
            branch.row = None

    patch.setattr(Lifecycle, "demote", faulty)


FAULTS: list[Callable[[Patch], None]] = [
    double_free,
    missing_lock,
    lock_lost_in_a_split,
    wrong_namespace,
    stale_tail,
    lost_cancel,
    freed_while_a_plan_names_it,
    waiter_that_keeps_a_lease,
    waiters_forgotten_when_their_owner_goes,
    source_not_pinned,
    duplicate_kept_in_the_table,
    locked_leaf_evicted,
    one_block_too_few,
    ended_twice,
    kept_blocks_leak,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError, ValueError, LookupError, TypeError)):
        for seed in range(40):
            play(seed, 50)
