"""The radix tree: which whole blocks of KV are cached, and who holds them.

Only whole blocks are in the tree. Edges are compressed: a node holds a run of blocks and its ids as bytes, so that a
walk compares memory instead of tokens and costs what is new, not what is stored.

    root ──[sys prompt: 25 blocks]──┬──[question a: 3 blocks]
                                    └──[question b: 2 blocks]──…
"""

from __future__ import annotations

from collections.abc import Mapping

from .blocks import BlockPool
from .events import CacheEvent, EventLog
from .eviction import Policy
from .handles import Commit, Lease, Match
from .namespace import Namespace
from .node import ID_BYTES, Node, common_ids
from .pending import PendingMarks
from .retention import Retention
from .shelf import Shelf, Shelves
from .walk import Place, nothing, walk

RETAINED_SHARE = 0.25


class LeaseError(RuntimeError):
    """A lease was released twice or used after its release: a fault of the caller."""


class RadixTree:
    """Prefix tree over the blocks of ``pool``. Deterministic; not thread-safe.

    ``block_size``: tokens per block, a power of two from 1. ``quotas``: blocks that a tenant may keep cached.
    ``retained_share``: part of the pool that soft retention may hold. ``events``: told of blocks stored and removed.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        policy: Policy = "lru",
        quotas: Mapping[str, int] | None = None,
        retained_share: float = RETAINED_SHARE,
        events: EventLog | None = None,
    ) -> None:
        if block_size < 1 or block_size & (block_size - 1):
            raise ValueError(
                f"block size {block_size} is not a power of two from 1; try {1 << block_size.bit_length()}"
            )
        self.pool = pool
        self.block_size = block_size
        self.events = events
        self.generation = 1
        self._policy: Policy = policy
        self._quotas = dict(quotas or {})
        self._retained_share = retained_share
        self._block_bytes = block_size * ID_BYTES
        self._roots: dict[Namespace, Node] = {}
        self._namespaces: dict[int, Namespace] = {}
        self._leases: dict[int, Node] = {}
        self._pending = PendingMarks()
        self._shelves = Shelves(policy, pool.total, self._quotas)
        self._retention = Retention(int(pool.total * retained_share))
        self._serial = 0
        self._tick = 0
        self._version = 0
        self._locked = 0
        self.evictions = 0
        """Blocks evicted since the start."""

    # ------------------------------------------------------------ accounts

    @property
    def stored_count(self) -> int:
        return self.pool.tree_count

    @property
    def locked_count(self) -> int:
        return self._locked

    @property
    def evictable_count(self) -> int:
        return self.pool.tree_count - self._locked

    @property
    def retained_count(self) -> int:
        """Blocks that go last for now, locked ones included."""
        return self._retention.count

    @property
    def lease_count(self) -> int:
        return len(self._leases)

    # ------------------------------------------------------------ match

    def match(self, namespace: Namespace, ids: bytes, limit: int = -1) -> Match:
        """What is cached of ``ids`` (int32 bytes), at most ``limit`` tokens of it. Changes nothing."""
        total = len(ids) // ID_BYTES
        limit = total if limit < 0 else min(limit, total)
        root = self._roots.get(namespace)
        if root is None:
            return nothing(namespace, ids, limit, self._version)
        return walk(root, namespace, ids, limit, self.block_size, self._version)

    # ------------------------------------------------------------ leases

    def acquire(self, match: Match) -> Lease:
        """Lock what was matched (nothing of it is evicted until the release). If the tree has changed since, it is
        matched again: the lease says how many blocks it holds."""
        place = self._place(match)
        if place is None:
            node = self._root(match.namespace)
        elif 0 < place.offset < len(place.node.blocks):
            node = self._split(place.node, place.offset)
        else:
            node = place.node if place.offset or place.node.parent is None else place.node.parent
        self._use(node)
        return self._lease(node)

    def acquire_root(self, namespace: Namespace) -> Lease:
        """A lease on nothing: where a row that must not match begins to commit."""
        return self._lease(self._root(namespace))

    def acquire_tail(self, match: Match) -> Lease:
        """Lock the block of ``match.tail`` (and what leads to it) while it is copied from. No edge is split for it."""
        place = self._place(match)
        if place is None or place.tail_node is None:
            raise LeaseError("the match has no tail to hold")
        self._use(place.tail_node)
        return self._lease(place.tail_node)

    def share(self, lease: Lease) -> Lease:
        """Another lease on the same path, to be released on its own."""
        return self._lease(self._node_of(lease))

    def release(self, lease: Lease, *, priority: int = 0, retain_until: float = 0.0, spent: bool = False) -> None:
        """Give a lease up: exactly once. One of an older generation does nothing.

        ``priority``: of the user (policy priority). ``retain_until``: keep the path that long, softly. ``spent``: the
        user knows that it was the last use; what nobody else has used goes first.
        """
        if lease.generation != self.generation:
            return
        node = self._leases.pop(lease.serial, None)
        if node is None:
            raise LeaseError(f"lease {lease.serial} was released before")
        self._pending.drop(lease.serial)
        self._tick += 1
        node.last = self._tick if node.hits > 1 or not spent else 0
        node.priority = max(node.priority, priority)
        if retain_until > self._retention.now:
            self._retention.retain(node, retain_until, self._split)
        shelf = node.shelf
        self._unlock(node)
        self._keep_quota(shelf)

    def commit(self, lease: Lease, ids: bytes, blocks: list[int]) -> Commit:
        """Store ``blocks`` (the caller's private ones, now the tree's) with their ``ids``, which follow the lease.

        Where the tree holds the same ids already, its own blocks are returned instead and the caller keeps the
        duplicates as private blocks, to be freed once nothing names them.
        """
        step = self._block_bytes
        if len(ids) != len(blocks) * step:
            raise ValueError(f"{len(blocks)} blocks of {self.block_size} ids need {len(blocks) * step} bytes of ids")
        start = node = self._node_of(lease)
        self._version += 1
        at = 0
        use: list[int] = []
        while at < len(ids):
            child = node.children.get(ids[at : at + step])
            if child is None:
                break
            same = common_ids(child.ids, 0, ids, at, (len(ids) - at) // ID_BYTES) // self.block_size
            if same < len(child.blocks):
                child = self._split(child, same)
            use += child.blocks
            node = child
            at += same * step
        replaced = blocks[: len(use)]
        fresh = blocks[len(use) :]
        if fresh:
            self.pool.adopt(fresh)
            node = self._append(node, node is start, ids[at:], fresh)
        if node is not start:
            self._leases[lease.serial] = node
            self._lock(node)
            self._pending.move(lease.serial, node)
            self._unlock(start)
        self._tick += 1
        node.last = self._tick
        if fresh:
            self._keep_quota(node.shelf)
        return Commit(Lease(lease.generation, lease.serial, node.depth), (*use, *fresh), tuple(replaced))

    # ------------------------------------------------------------ pending prefixes

    def announce(self, lease: Lease, ids: bytes, until: int) -> None:
        """Say that the holder of ``lease`` is computing ``ids`` and will have committed the first ``until`` tokens.

        The mark follows the lease through its commits and ends with ``withdraw`` or the release.
        """
        self._pending.put(lease.serial, self._node_of(lease), ids, until)

    def withdraw(self, lease: Lease) -> None:
        """Nobody is to wait for this lease any more. Idempotent."""
        if lease.generation == self.generation:
            self._pending.drop(lease.serial)

    # ------------------------------------------------------------ eviction

    def advance(self, now: float) -> None:
        """The time, in seconds of the clock of ``retain_until``."""
        self._retention.advance(now)

    def evict(self, count: int) -> int:
        """Free at least ``count`` blocks if so many are evictable, leaves first, from their ends; how many were."""
        freed = 0
        while freed < count:
            node = self._shelves.first()
            if node is None:
                break
            freed += self._cut(node, count - freed)
        self.evictions += freed
        return freed

    def flush(self) -> int:
        """Free every block that no lease holds; how many were."""
        return self.evict(self.evictable_count)

    def reset(self, pool: BlockPool) -> None:
        """The device lost its KV: begin with an empty ``pool``. All leases become void."""
        self.pool = pool
        self.generation += 1
        self._version += 1
        self._roots.clear()
        self._namespaces.clear()
        self._leases.clear()
        self._pending.clear()
        self._shelves = Shelves(self._policy, pool.total, self._quotas)
        self._retention = Retention(int(pool.total * self._retained_share))
        self._locked = 0
        if self.events is not None:
            self.events.add(CacheEvent("cleared", Namespace()))

    # ------------------------------------------------------------ inside: leases and locks

    def _root(self, namespace: Namespace) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, self._shelves.of(namespace), b"", [])
            self._namespaces[id(root)] = namespace
        return root

    def _place(self, match: Match) -> Place | None:
        if match.version != self._version:
            match = self.match(match.namespace, match.ids, match.limit)
        place: Place | None = match.place
        return place

    def _node_of(self, lease: Lease) -> Node:
        node = self._leases.get(lease.serial) if lease.generation == self.generation else None
        if node is None:
            raise LeaseError(f"lease {lease.serial} is not held (generation {lease.generation} of {self.generation})")
        return node

    def _lease(self, node: Node) -> Lease:
        self._serial += 1
        self._leases[self._serial] = node
        self._lock(node)
        return Lease(self.generation, self._serial, node.depth)

    def _use(self, node: Node) -> None:
        self._tick += 1
        node.last = self._tick
        node.hits += 1
        order = node.shelf.order
        if order.segmented:
            # What is used again is protected, and all above it: they were used at least as often.
            while not node.protected and node.parent is not None:
                node.protected = True
                order.on_probation -= len(node.blocks)
                order.moved(node)
                node = node.parent

    def _lock(self, node: Node) -> None:
        was = node.locked
        node.leases += 1
        while not was:
            self._locked += len(node.blocks)
            if node.queue is not None:
                node.queue.discard(node)
            parent = node.parent
            if parent is None:
                return
            was = parent.locked
            parent.locked_children += 1
            node = parent

    def _unlock(self, node: Node) -> None:
        node.leases -= 1
        while not node.locked:
            self._locked -= len(node.blocks)
            parent = node.parent
            if parent is None:
                if not node.children:
                    self._drop_root(node)
                return
            if not node.children:
                node.shelf.order.push(node)
            parent.locked_children -= 1
            node = parent

    # ------------------------------------------------------------ inside: shape

    def _split(self, node: Node, offset: int) -> Node:
        """Cut an edge after ``offset`` blocks; the new upper node. The lower one keeps its identity and its leases."""
        self._version += 1
        parent = node.parent
        assert parent is not None and 0 < offset < len(node.blocks)
        cut = offset * self._block_bytes
        upper = Node(parent, node.shelf, node.ids[:cut], node.blocks[:offset])
        upper.last, upper.priority, upper.protected = node.last, node.priority, node.protected
        if node.prints is not None:
            upper.prints, node.prints = node.prints[:offset], node.prints[offset:]
        parent.replace_child(node.ids[: self._block_bytes], upper)
        node.ids = node.ids[cut:]
        node.blocks = node.blocks[offset:]
        node.parent = upper
        upper.add_child(node.ids[: self._block_bytes], node)
        upper.locked_children = 1 if node.locked else 0
        self._retention.split(upper, node)
        return upper

    def _append(self, node: Node, own: bool, ids: bytes, blocks: list[int]) -> Node:
        """Hang new blocks below ``node``; ``own``: the caller's lease stands there."""
        if self.events is not None:
            namespace = self._namespaces[id(_root_of(node))]
            self.events.add(CacheEvent("stored", namespace, node.depth, tuple(blocks), ids))
        node.shelf.stored += len(blocks)
        if not node.shelf.order.segmented:
            return self._hang(node, own, ids, blocks, None, protected=False)
        # In runs of blocks that were evicted not long ago, and of others.
        step, shadows = self._block_bytes, node.shelf.order.shadows
        mark = node.fingerprint
        prints: list[int] = []
        known: list[bool] = []
        for at in range(0, len(ids), step):
            mark = hash((mark, ids[at : at + step]))
            prints.append(mark)
            known.append(shadows.take(mark))
        begin = 0
        while begin < len(blocks):
            end = begin + 1
            while end < len(blocks) and known[end] == known[begin]:
                end += 1
            part = ids[begin * step : end * step]
            node = self._hang(node, own, part, blocks[begin:end], prints[begin:end], protected=known[begin])
            own = False
            begin = end
        return node

    def _hang(
        self, node: Node, own: bool, ids: bytes, blocks: list[int], prints: list[int] | None, *, protected: bool
    ) -> Node:
        """Into the node's own edge where nobody else could tell, else as a new child."""
        if not protected:
            node.shelf.order.on_probation += len(blocks)
        alone = own and node.leases == 1 and not node.children and node.parent is not None
        if alone and node.protected == protected and not node.retained:
            node.ids += ids
            node.blocks = node.blocks + blocks
            node.depth += len(blocks)
            if prints is not None and node.prints is not None:
                node.prints += prints
            self._locked += len(blocks)
            return node
        child = Node(node, node.shelf, ids, list(blocks))
        child.last = node.last
        child.protected, child.prints = protected, prints
        node.add_child(ids[: self._block_bytes], child)
        if node.queue is not None:
            node.queue.discard(node)
        return child

    def _cut(self, node: Node, count: int) -> int:
        """Free up to ``count`` blocks from the end of an unlocked leaf; the leaf goes when nothing is left of it."""
        self._version += 1
        keep = len(node.blocks) - count
        if keep > 0:
            gone = node.blocks[keep:]
        else:
            keep, gone = 0, node.blocks
        shelf = node.shelf
        if self.events is not None:
            namespace = self._namespaces[id(_root_of(node))]
            ids = node.ids[keep * self._block_bytes :]
            self.events.add(CacheEvent("removed", namespace, node.depth - len(gone), tuple(gone), ids))
        self.pool.discard(gone)
        shelf.stored -= len(gone)
        if node.retained:
            self._retention.shrunk(len(gone))
        if not node.protected:
            shelf.order.on_probation -= len(gone)
        if node.prints is not None:
            for fingerprint in node.prints[keep:]:
                shelf.order.shadows.add(fingerprint)
            del node.prints[keep:]
        if keep:
            node.blocks = node.blocks[:keep]
            node.ids = node.ids[: keep * self._block_bytes]
            node.depth -= len(gone)
        else:
            self._remove(node)
        return len(gone)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        if node.queue is not None:
            node.queue.discard(node)
        parent.remove_child(node.ids[: self._block_bytes])
        node.parent = None
        node.retained = False
        if node.last > parent.last:
            parent.last = node.last
        if node.priority > parent.priority:
            parent.priority = node.priority
        parent.hits += node.hits
        if parent.children or parent.locked:
            return
        if parent.parent is None:
            self._drop_root(parent)
        else:
            parent.shelf.order.push(parent)

    def _drop_root(self, root: Node) -> None:
        del self._roots[self._namespaces.pop(id(root))]

    def _keep_quota(self, shelf: Shelf) -> None:
        """A tenant's own oldest blocks go where it has more than it may keep."""
        while (excess := shelf.excess) > 0:
            node = shelf.order.first() or shelf.order.first_retained()
            if node is None:
                return
            self.evictions += self._cut(node, excess)


def _root_of(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node
