"""Soft retention: "keep this for 300 seconds". It goes last, not never, and only a share of the pool may be so kept."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from .node import Node


class Retention:
    """``cap``: blocks that may be retained at once; what would exceed it is granted from the root down, as far as it
    reaches. Time comes from outside (``advance``)."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.count = 0
        """Blocks that are retained now."""
        self.now = 0.0
        self._serial = 0
        self._ends: list[tuple[float, int, Node]] = []

    def retain(self, node: Node, until: float, split: Callable[[Node, int], Node]) -> None:
        """Keep the path to ``node``. ``split``: cuts an edge after so many blocks and returns the upper part."""
        path: list[Node] = []
        step: Node | None = node
        while step is not None and step.parent is not None and not (step.retained and step.retain_until >= until):
            path.append(step)
            step = step.parent
        for member in reversed(path):
            fresh = 0 if member.retained else len(member.blocks)
            room = self.cap - self.count
            if fresh > room:
                if room:
                    self.count += room
                    self._mark(split(member, room), until)
                return
            self.count += fresh
            self._mark(member, until)

    def advance(self, now: float) -> None:
        """Retention that is over ends."""
        self.now = max(self.now, now)
        while self._ends and self._ends[0][0] <= self.now:
            until, _, node = heapq.heappop(self._ends)
            if node.retained and node.retain_until == until:
                self.end(node)

    def end(self, node: Node) -> None:
        if node.retained:
            node.retained = False
            self.count -= len(node.blocks)
            node.shelf.order.moved(node)

    def split(self, upper: Node, lower: Node) -> None:
        """``upper`` was cut off ``lower``'s edge."""
        if lower.retained:
            self._mark(upper, lower.retain_until)

    def shrunk(self, blocks: int) -> None:
        """So many retained blocks are gone."""
        self.count -= blocks

    def _mark(self, node: Node, until: float) -> None:
        node.retained, node.retain_until = True, until
        self._serial += 1
        heapq.heappush(self._ends, (until, self._serial, node))
        node.shelf.order.moved(node)
