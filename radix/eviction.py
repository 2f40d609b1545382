"""Which unlocked leaf goes first: policies and the queues they order.

``lru``       least recently used first.
``lfu``       least often used first, the least recent of those.
``priority``  lowest priority of its users first, the least recent of those.
``slru``      two segments, each least recently used first. New blocks are on probation and go first; blocks that were
              used again are protected. A newcomer is protected at once if it was evicted not long ago (the shadows of
              evicted blocks are remembered, twice as many as the pool has blocks). A twentieth of the pool stays for
              probation, so that newcomers live long enough to be used again.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, TypeAlias

from .node import Node

Policy: TypeAlias = Literal["lru", "lfu", "slru", "priority"]
_TICKS = 48
"""Bits of a key that hold the time of last use; the class of the node stands above them."""
_STAMP = (1 << 64) - 1
PROBATION_SHARE = 0.05
SHADOWS_PER_BLOCK = 2


def _recency(node: Node) -> int:
    return node.last


def _frequency(node: Node) -> int:
    return node.hits << _TICKS | node.last


def _priority(node: Node) -> int:
    return node.priority << _TICKS | node.last


POLICIES: dict[str, Callable[[Node], int]] = {
    "lru": _recency,
    "lfu": _frequency,
    "slru": _recency,
    "priority": _priority,
}


def _end_of_retention(node: Node) -> int:
    return int(node.retain_until * 1000)


class LeafQueue:
    """Evictable leaves by a key, smallest first, in O(log n) per change.

    A node's key can't change while it waits here (a use would lock it first), so an entry is pushed when its node
    becomes an unlocked leaf and goes stale when the node stops being one. Stale entries are dropped as they surface,
    and all at once when they are the majority. An entry is one integer: the key, then the stamp that finds the node.
    """

    __slots__ = ("_heap", "_key", "_nodes", "_stamp")

    def __init__(self, key: Callable[[Node], int]) -> None:
        self._key = key
        self._heap: list[int] = []
        self._nodes: dict[int, Node] = {}
        self._stamp = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def push(self, node: Node) -> None:
        """``node`` waits in no queue yet."""
        self._stamp += 1
        node.queue, node.stamp = self, self._stamp
        self._nodes[self._stamp] = node
        heapq.heappush(self._heap, self._key(node) << 64 | self._stamp)

    def discard(self, node: Node) -> None:
        """``node`` waits here, and is to wait no longer."""
        del self._nodes[node.stamp]
        node.queue, node.stamp = None, 0
        if len(self._heap) > 2 * len(self._nodes) + 64:
            self._heap = [entry for entry in self._heap if entry & _STAMP in self._nodes]
            heapq.heapify(self._heap)

    def first(self) -> Node | None:
        """The node to evict from next; it stays in the queue."""
        heap, nodes = self._heap, self._nodes
        while heap:
            node = nodes.get(heap[0] & _STAMP)
            if node is not None:
                return node
            heapq.heappop(heap)
        return None


class Shadows:
    """Fingerprints of prefixes whose last block was evicted, the latest ``capacity`` of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[int, None] = OrderedDict()

    def add(self, fingerprint: int) -> None:
        self._seen[fingerprint] = None
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def take(self, fingerprint: int) -> bool:
        """Whether it is remembered; it is forgotten then."""
        return self._seen.pop(fingerprint, 0) is None

    def clear(self) -> None:
        self._seen.clear()


class EvictionOrder:
    """All evictable leaves of a shelf under one policy; ``blocks``: how many it may hold.

    ``segmented``: the tree keeps ``Node.protected`` and fingerprints, and tells of blocks that come and go.
    """

    def __init__(self, policy: Policy, blocks: int) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown eviction policy {policy!r}; choose one of {', '.join(POLICIES)}")
        self.segmented = policy == "slru"
        key = POLICIES[policy]
        self._probation, self._protected = LeafQueue(key), LeafQueue(key)
        self._retained = LeafQueue(_end_of_retention)
        self._floor = int(blocks * PROBATION_SHARE)
        self.shadows = Shadows(blocks * SHADOWS_PER_BLOCK if self.segmented else 0)
        self.on_probation = 0
        """Blocks of unprotected nodes, evictable or not."""

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected) + len(self._retained)

    def push(self, node: Node) -> None:
        """``node`` has become an unlocked leaf."""
        if node.retained:
            self._retained.push(node)
        elif node.protected:
            self._protected.push(node)
        else:
            self._probation.push(node)

    def moved(self, node: Node) -> None:
        """``node`` was protected, retained or released from it: it may belong elsewhere now."""
        if node.queue is not None:
            node.queue.discard(node)
            self.push(node)

    def first(self) -> Node | None:
        """The leaf to evict from next, retained ones aside."""
        if self.segmented and self.on_probation <= self._floor:
            return self._protected.first() or self._probation.first()
        return self._probation.first() or self._protected.first()

    def first_retained(self) -> Node | None:
        return self._retained.first()
