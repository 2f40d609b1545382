"""Which unlocked leaf goes first: policies and the heap they order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Literal, TypeAlias

from .node import Node

Policy: TypeAlias = Literal["lru", "lfu", "slru", "priority"]
Key: TypeAlias = tuple[float, ...]


def _lru(node: Node) -> Key:
    return (node.last,)


def _lfu(node: Node) -> Key:
    return (node.hits, node.last)


def _slru(node: Node) -> Key:
    return (node.hits > 1, node.last)


def _priority(node: Node) -> Key:
    return (node.priority, node.last)


POLICIES: dict[str, Callable[[Node], Key]] = {"lru": _lru, "lfu": _lfu, "slru": _slru, "priority": _priority}


class EvictionQueue:
    """Evictable leaves in the order of the policy, in O(log n) per change.

    A node's key can't change while it is evictable (a use would lock it first), so an entry is pushed when its node
    becomes an unlocked leaf and goes stale when the node stops being one. Stale entries are dropped as they surface,
    and all at once when they are the majority.
    """

    def __init__(self, policy: Policy) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown eviction policy {policy!r}; choose one of {', '.join(POLICIES)}")
        self._key = POLICIES[policy]
        self._heap: list[tuple[Key, int, Node]] = []
        self._stamp = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, node: Node) -> None:
        """``node`` has become an unlocked leaf."""
        self._stamp += 1
        if not node.stamp:
            self._live += 1
        node.stamp = self._stamp
        heapq.heappush(self._heap, (self._key(node), self._stamp, node))

    def discard(self, node: Node) -> None:
        """``node`` is no longer one."""
        if node.stamp:
            node.stamp = 0
            self._live -= 1
            if len(self._heap) > 2 * self._live + 64:
                self._heap = [entry for entry in self._heap if entry[2].stamp == entry[1]]
                heapq.heapify(self._heap)

    def first(self) -> Node | None:
        """The node to evict from next; it stays in the queue."""
        heap = self._heap
        while heap:
            _, stamp, node = heap[0]
            if node.stamp == stamp:
                return node
            heapq.heappop(heap)
        return None

    def clear(self) -> None:
        self._heap.clear()
        self._live = 0
