"""Nodes of the prefix tree: an edge of whole blocks and what hangs below it."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .eviction import LeafQueue
    from .pending import Pending
    from .shelf import Shelf

ID_BYTES = 4


def common_ids(a: bytes, a_at: int, b: bytes, b_at: int, limit: int) -> int:
    """How many int32 ids agree from byte offsets ``a_at`` and ``b_at`` on, at most ``limit``."""
    count = min(limit, (len(a) - a_at) // ID_BYTES, (len(b) - b_at) // ID_BYTES)
    if count <= 0:
        return 0
    x = np.frombuffer(a, np.int32, count, a_at)
    y = np.frombuffer(b, np.int32, count, b_at)
    differ = x != y
    first = int(differ.argmax())
    return first if differ[first] else count


class Node:
    """``ids`` spells the edge (int32 bytes of whole blocks), ``blocks`` holds its KV.

    A node is locked while it has leases of its own or a locked child; only the transitions walk up, so that taking a
    lease below a locked prefix costs nothing more.

    What is counted for the eviction (``last``, ``hits``, ``priority``) is counted where a lease ends, and passed to the
    parent when the node goes: by the time the parent can be evicted itself, it knows of every use below it.
    """

    __slots__ = (
        "blocks",
        "children",
        "depth",
        "hits",
        "ids",
        "keys",
        "last",
        "leases",
        "locked_children",
        "parent",
        "pending",
        "prints",
        "priority",
        "protected",
        "queue",
        "retain_until",
        "retained",
        "shelf",
        "stamp",
    )

    def __init__(self, parent: Node | None, shelf: Shelf, ids: bytes, blocks: list[int]) -> None:
        self.parent = parent
        self.shelf = shelf
        self.ids = ids
        self.blocks = blocks
        self.depth: int = parent.depth + len(blocks) if parent is not None else 0
        """Blocks from the root to this node's end."""
        self.children: dict[bytes, Node] = {}
        self.keys: list[bytes] = []
        """Keys of ``children``, sorted: the neighbours of a key share the longest head with it."""
        self.leases = 0
        self.locked_children = 0
        self.pending: list[Pending] | None = None
        self.last = 0
        self.hits = 0
        self.priority = 0
        self.protected = False
        """Used again since it was stored (policy slru)."""
        self.prints: list[int] | None = None
        """Fingerprint of the prefix up to each block (policy slru)."""
        self.retained = False
        self.retain_until = 0.0
        self.queue: LeafQueue | None = None
        """Where it waits for its eviction, while it is an unlocked leaf."""
        self.stamp = 0

    @property
    def locked(self) -> bool:
        return self.leases > 0 or self.locked_children > 0

    @property
    def fingerprint(self) -> int:
        """Of the prefix up to the node's end."""
        return self.prints[-1] if self.prints else 0

    def add_child(self, key: bytes, child: Node) -> None:
        self.children[key] = child
        insort(self.keys, key)

    def replace_child(self, key: bytes, child: Node) -> None:
        self.children[key] = child

    def remove_child(self, key: bytes) -> None:
        del self.children[key]
        del self.keys[bisect_left(self.keys, key)]

    def best_child(self, head: bytes) -> tuple[Node, int] | None:
        """The child whose first block agrees with the most ids of ``head``, and how many (None if none does).

        In byte order the longest common head is found beside the place where ``head`` would be inserted.
        """
        keys = self.keys
        at = bisect_left(keys, head)
        best: tuple[Node, int] | None = None
        for index in (at, at - 1):
            if 0 <= index < len(keys):
                agree = common_ids(keys[index], 0, head, 0, len(head) // ID_BYTES)
                if agree and (best is None or agree > best[1]):
                    best = (self.children[keys[index]], agree)
        return best
