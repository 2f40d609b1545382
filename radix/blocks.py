"""The pool of KV blocks: every block is in exactly one state.

free ──allocate──► private ──adopt──► in the tree (evictable, or locked by leases)
  ▲◄─────free─────────┘                    │
  └◄─────────────────discard───────────────┘

Small blocks waste little, large ones are read faster. So ``group`` neighbours of the pool can stand for a large one: a
sequence gets them side by side, in the order of its table, while there are groups that are wholly free. Nobody owns
the rest of a group that was begun: it goes to others when nothing else is left.
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
    """``total`` blocks, numbered from 0. Allocation order is deterministic: what was freed last comes first."""

    __slots__ = ("_free", "_group", "_left", "_loose", "_state", "_tree", "_whole", "total")

    def __init__(self, total: int, group: int = 1) -> None:
        if total < 1:
            raise ValueError(f"a pool of {total} blocks cannot hold anything; give at least 1")
        self.total = total
        self._group = group
        self._state = bytearray(total)
        self._free = total
        self._tree = 0
        self._left = [min(group, total - first) for first in range(0, total, group)]
        """Free blocks of each group."""
        self._whole: list[int] = []
        """Groups that are wholly free, and some that were: looked at when they come up."""
        self._loose: list[int] = []
        """Free blocks of other groups, and some that were."""
        self._gather()

    @property
    def free_count(self) -> int:
        return self._free

    @property
    def tree_count(self) -> int:
        return self._tree

    @property
    def private_count(self) -> int:
        return self.total - self._free - self._tree

    def allocate(self, count: int, index: int = 0, after: int = -1) -> list[int]:
        """Take ``count`` free blocks as private ones: for the places from ``index`` on of a table in which block
        ``after`` stands in front of them. Raises OutOfBlocks, taking none."""
        if count > self._free:
            raise OutOfBlocks(f"{count} blocks asked for, {self._free} of {self.total} are free")
        taken: list[int] = []
        state, left, group = self._state, self._left, self._group
        for place in range(index, index + count):
            after += 1
            place %= group
            if not place or after % group != place or after >= self.total or state[after] != FREE:
                after = self._find(place)
            state[after] = PRIVATE
            left[after // group] -= 1
            taken.append(after)
        self._free -= count
        if len(self._loose) > 4 * self.total + 64:
            self._gather()
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
        states, group = bytes(self._state), self._group
        if states.count(FREE) != self._free or states.count(TREE) != self._tree:
            raise BlockError(
                f"{states.count(FREE)} blocks are free and {states.count(TREE)} in the tree, "
                f"counted {self._free} and {self._tree}"
            )
        whole, loose = set(self._whole), set(self._loose)
        for number, left in enumerate(self._left):
            blocks = range(number * group, min((number + 1) * group, self.total))
            free = [block for block in blocks if states[block] == FREE]
            if len(free) != left:
                raise BlockError(f"{len(free)} blocks of group {number} are free, counted {left}")
            if not (number in whole if left == group else loose.issuperset(free)):
                raise BlockError(f"free blocks of group {number} would never be found")

    # ------------------------------------------------------------ inside

    def _find(self, place: int) -> int:
        """A free block, the one at ``place`` of a wholly free group if there is one. The caller knows that some are."""
        whole, left, group = self._whole, self._left, self._group
        while whole:
            number = whole.pop()
            if left[number] == group:
                first = number * group
                self._loose += [block for block in range(first + group - 1, first - 1, -1) if block != first + place]
                return first + place
        while True:
            block = self._loose.pop()
            if self._state[block] == FREE:
                return block

    def _gather(self) -> None:
        """Forget what is in the lists without being free."""
        group, state = self._group, self._state
        numbers = range(len(self._left) - 1, -1, -1)
        self._whole = [number for number in numbers if self._left[number] == group]
        self._loose = [
            block
            for number in numbers
            if 0 < self._left[number] < group
            for block in range(min((number + 1) * group, self.total) - 1, number * group - 1, -1)
            if state[block] == FREE
        ]

    def _move(self, blocks: Iterable[int], old: int, new: int) -> None:
        state, left, group = self._state, self._left, self._group
        whole, loose = self._whole, self._loose
        moved = 0
        for block in blocks:
            if state[block] != old:
                raise BlockError(f"block {block} is {_NAMES[state[block]]}, expected {_NAMES[old]}")
            state[block] = new
            moved += 1
            if new == FREE:
                number = block // group
                left[number] += 1
                if left[number] == group:
                    whole.append(number)
                else:
                    loose.append(block)
        if new == FREE:
            self._free += moved
            if len(self._whole) > 4 * self.total + 64:
                self._gather()
        if TREE in (old, new):
            self._tree += moved if new == TREE else -moved
