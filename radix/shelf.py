"""Shelves: whose evictable leaves are weighed against whose. A tenant with a quota has a shelf of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .eviction import EvictionOrder, Policy
from .namespace import Namespace
from .node import Node


class Shelf:
    """``quota``: blocks that it may keep cached (0: no limit); what is locked may exceed it."""

    __slots__ = ("order", "quota", "stored")

    def __init__(self, policy: Policy, blocks: int, quota: int = 0) -> None:
        self.quota = quota
        self.order = EvictionOrder(policy, min(blocks, quota) if quota else blocks)
        self.stored = 0
        """Blocks in the tree."""

    @property
    def excess(self) -> int:
        """Blocks beyond the quota."""
        return self.stored - self.quota if self.quota and self.stored > self.quota else 0


class Shelves:
    """``quotas``: by tenant, in blocks."""

    def __init__(self, policy: Policy, blocks: int, quotas: Mapping[str, int]) -> None:
        self._common = Shelf(policy, blocks)
        self._own = {tenant: Shelf(policy, blocks, max(quota, 1)) for tenant, quota in quotas.items()}

    def __iter__(self) -> Iterator[Shelf]:
        yield self._common
        yield from self._own.values()

    def of(self, namespace: Namespace) -> Shelf:
        return self._own.get(namespace.tenant, self._common)

    def first(self) -> Node | None:
        """The leaf to evict from next: of the shelves' firsts the least recently used; retained ones only when
        nothing else is left."""
        if not self._own:
            return self._common.order.first() or self._common.order.first_retained()
        firsts = [node for shelf in self if (node := shelf.order.first()) is not None]
        firsts = firsts or [node for shelf in self if (node := shelf.order.first_retained()) is not None]
        return min(firsts, key=lambda node: node.last, default=None)
