"""The pool of KV blocks: every block is in exactly one state.

free ──allocate──► private ──adopt──► in the tree (evictable, or locked by leases)
  ▲◄─────free─────────┘                    │
  └◄─────────────────discard───────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FREE, PRIVATE, TREE = 0, 1, 2
_NAMES = ("free", "private", "in the tree")


class BlockError(RuntimeError):
    """A block was used against its state (freed twice, taken from the tree twice, ...): a fault of the caller."""


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free."""


class BlockPool:
    """``total`` blocks, numbered from 0. Allocation order is deterministic: the block freed last comes first."""

    __slots__ = ("_free", "_state", "_tree", "total")

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool of {total} blocks cannot hold anything; give at least 1")
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._state = bytearray(total)
        self._tree = 0

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def tree_count(self) -> int:
        return self._tree

    @property
    def private_count(self) -> int:
        return self.total - len(self._free) - self._tree

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks as private ones. Raises OutOfBlocks, taking none."""
        if count == 0:
            return []
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks asked for, {len(self._free)} of {self.total} are free")
        taken = self._free[: -count - 1 : -1]
        del self._free[-count:]
        state = self._state
        for block in taken:
            state[block] = PRIVATE
        return taken

    def free(self, blocks: Iterable[int]) -> None:
        """Give private blocks back."""
        self._move(blocks, PRIVATE, FREE)

    def adopt(self, blocks: Sequence[int]) -> None:
        """Private blocks become the tree's."""
        self._move(blocks, PRIVATE, TREE)

    def discard(self, blocks: Sequence[int]) -> None:
        """Blocks of the tree become free."""
        self._move(blocks, TREE, FREE)

    def state(self, block: int) -> int:
        return self._state[block]

    def check(self) -> None:
        """Raise BlockError unless the counts and the states agree."""
        states = bytes(self._state)
        if states.count(FREE) != len(self._free) or len(set(self._free)) != len(self._free):
            raise BlockError(f"{states.count(FREE)} blocks are free, the free list holds {len(self._free)}")
        if any(states[block] != FREE for block in self._free):
            raise BlockError("a block of the free list is in use")
        if states.count(TREE) != self._tree:
            raise BlockError(f"{states.count(TREE)} blocks are in the tree, counted {self._tree}")

    def _move(self, blocks: Iterable[int], old: int, new: int) -> None:
        state = self._state
        moved = 0
        for block in blocks:
            if state[block] != old:
                raise BlockError(f"block {block} is {_NAMES[state[block]]}, expected {_NAMES[old]}")
            state[block] = new
            moved += 1
            if new == FREE:
                self._free.append(block)
        if TREE in (old, new):
            self._tree += moved if new == TREE else -moved
