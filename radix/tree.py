"""The radix tree: which whole blocks of KV are cached, and who holds them.

Only whole blocks are in the tree. Edges are compressed: a node holds a run of blocks and its ids as bytes, so that a
walk compares memory instead of tokens and costs what is new, not what is stored.

    root ──[sys prompt: 25 blocks]──┬──[question a: 3 blocks]
                                    └──[question b: 2 blocks]──…
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .blocks import BlockPool
from .events import CacheEvent, EventLog
from .eviction import EvictionOrder, Policy
from .handles import Commit, Lease, Match, PendingMatch, TailMatch
from .namespace import Namespace
from .node import ID_BYTES, Node, Pending, common_ids


class LeaseError(RuntimeError):
    """A lease was released twice or used after its release: a fault of the caller."""


@dataclass(frozen=True, slots=True)
class _Place:
    """End of a walk: ``offset`` blocks of the edge of ``node`` (all of them: at its end)."""

    node: Node
    offset: int
    tail_node: Node | None


class RadixTree:
    """Prefix tree over the blocks of ``pool``. Deterministic; not thread-safe.

    ``block_size``: tokens per block, a power of two from 1. ``events``: where stored and removed blocks are told.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, *, policy: Policy = "lru", events: EventLog | None = None
    ) -> None:
        if block_size < 1 or block_size & (block_size - 1):
            raise ValueError(
                f"block size {block_size} is not a power of two from 1; try {1 << block_size.bit_length()}"
            )
        self.pool = pool
        self.block_size = block_size
        self.events = events
        self.generation = 1
        self.policy: Policy = policy
        self._block_bytes = block_size * ID_BYTES
        self._order = EvictionOrder(policy, pool.total)
        self._roots: dict[Namespace, Node] = {}
        self._namespaces: dict[int, Namespace] = {}
        self._leases: dict[int, Node] = {}
        self._pending: dict[int, tuple[Node, Pending]] = {}
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
    def lease_count(self) -> int:
        return len(self._leases)

    # ------------------------------------------------------------ match

    def match(self, namespace: Namespace, ids: bytes, limit: int = -1) -> Match:
        """What is cached of ``ids`` (int32 bytes), at most ``limit`` tokens of it. Changes nothing."""
        total = len(ids) // ID_BYTES
        limit = total if limit < 0 else min(limit, total)
        root = self._roots.get(namespace)
        if root is None:
            return Match(namespace, (), 0, None, None, 0, ids, limit, self._version, None)
        step = self._block_bytes
        end = limit // self.block_size * step
        node, at, offset = root, 0, 0
        blocks: list[int] = []
        unlocked = 0
        inside: Node | None = None
        while at < end:
            child = node.children.get(ids[at : at + step])
            if child is None:
                break
            edge = child.ids
            if at + len(edge) <= end and ids.startswith(edge, at):
                blocks += child.blocks
                if not child.leases and not child.locked_children:
                    unlocked += len(child.blocks)
                node = child
                at += len(edge)
                continue
            offset = common_ids(edge, 0, ids, at, (end - at) // ID_BYTES) // self.block_size
            blocks += child.blocks[:offset]
            if not child.locked:
                unlocked += offset
            inside = child
            at += offset * step
            break
        tokens = len(blocks) * self.block_size
        tail = self._tail(node, inside, offset, ids, at, limit)
        pending = None
        if inside is None and node.pending:
            pending = self._pending_match(node.pending, ids, tokens, limit)
        place = _Place(inside or node, offset if inside else len(node.blocks), tail[1] if tail else None)
        return Match(
            namespace,
            tuple(blocks),
            tokens,
            tail[0] if tail else None,
            pending,
            unlocked,
            ids,
            limit,
            self._version,
            place,
        )

    def _tail(
        self, node: Node, inside: Node | None, offset: int, ids: bytes, at: int, limit: int
    ) -> tuple[TailMatch, Node] | None:
        want = min(limit - at // ID_BYTES, self.block_size)
        if want <= 0:
            return None
        if inside is not None:
            agree = common_ids(inside.ids, offset * self._block_bytes, ids, at, want)
            return (TailMatch(inside.blocks[offset], agree), inside) if agree else None
        found = node.best_child(ids[at : at + want * ID_BYTES])
        if found is None:
            return None
        return TailMatch(found[0].blocks[0], found[1]), found[0]

    def _pending_match(self, pendings: list[Pending], ids: bytes, tokens: int, limit: int) -> PendingMatch | None:
        """The owner whose work saves most: agreement counts up to the end of the last block that will be committed."""
        best: PendingMatch | None = None
        size = self.block_size
        at = tokens * ID_BYTES
        for pending in pendings:
            agree = tokens + common_ids(pending.ids, at, ids, at, limit - tokens)
            useful = min(agree, pending.until)
            if useful - tokens < min(size, 16):
                continue
            wait = min(-(-useful // size) * size, pending.until)
            if best is None or wait > best.tokens:
                best = PendingMatch(pending.owner, wait)
        return best

    # ------------------------------------------------------------ leases

    def acquire(self, match: Match) -> Lease:
        """Lock what was matched (nothing of it is evicted until the release)."""
        if match.version != self._version:
            match = self.match(match.namespace, match.ids, match.limit)
        place: _Place | None = match.place
        if place is None:
            node = self._root(match.namespace)
        else:
            node = place.node
            if 0 < place.offset < len(node.blocks):
                node = self._split(node, place.offset)
            elif place.offset == 0 and node.parent is not None:
                node = node.parent
        self._use(node)
        return self._lease(node)

    def acquire_root(self, namespace: Namespace) -> Lease:
        """A lease on nothing: where a row that must not match begins to commit."""
        return self._lease(self._root(namespace))

    def acquire_tail(self, match: Match) -> Lease:
        """Lock the block of ``match.tail`` (and what leads to it) while it is copied from. No edge is split for it."""
        if match.version != self._version:
            match = self.match(match.namespace, match.ids, match.limit)
        place: _Place | None = match.place
        if place is None or place.tail_node is None:
            raise LeaseError("the match has no tail to hold")
        self._use(place.tail_node)
        return self._lease(place.tail_node)

    def share(self, lease: Lease) -> Lease:
        """Another lease on the same path, to be released on its own."""
        return self._lease(self._node_of(lease))

    def release(self, lease: Lease) -> None:
        """Give a lease up: exactly once. One of an older generation does nothing."""
        if lease.generation != self.generation:
            return
        node = self._leases.pop(lease.serial, None)
        if node is None:
            raise LeaseError(f"lease {lease.serial} was released before")
        self._withdraw(lease.serial)
        self._tick += 1
        node.last = self._tick
        self._unlock(node)

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
            self._move(lease.serial, start, node)
        self._tick += 1
        node.last = self._tick
        return Commit(Lease(lease.generation, lease.serial, node.depth), (*use, *fresh), tuple(replaced))

    # ------------------------------------------------------------ pending prefixes

    def announce(self, lease: Lease, ids: bytes, until: int) -> None:
        """Say that the holder of ``lease`` is computing ``ids`` and will have committed the first ``until`` tokens.

        The mark follows the lease through its commits and ends with ``withdraw`` or the release.
        """
        node = self._node_of(lease)
        self._withdraw(lease.serial)
        pending = Pending(lease.serial, ids, until)
        self._pending[lease.serial] = (node, pending)
        if node.pending is None:
            node.pending = []
        node.pending.append(pending)

    def withdraw(self, lease: Lease) -> None:
        """Nobody is to wait for this lease any more. Idempotent."""
        if lease.generation == self.generation:
            self._withdraw(lease.serial)

    # ------------------------------------------------------------ eviction

    def evict(self, count: int) -> int:
        """Free at least ``count`` blocks if so many are evictable, leaves first, from their ends; how many were."""
        freed = 0
        while freed < count:
            node = self._order.first()
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
        self._order = EvictionOrder(self.policy, pool.total)
        self._locked = 0
        if self.events is not None:
            self.events.add(CacheEvent("cleared", Namespace()))

    def dump(self) -> list[dict[str, object]]:
        """A summary for people: per namespace its nodes, parents first."""
        result: list[dict[str, object]] = []
        for namespace, root in self._roots.items():
            nodes: list[dict[str, object]] = []
            stack: list[tuple[Node, int]] = [(child, -1) for child in root.children.values()]
            while stack:
                node, parent = stack.pop()
                nodes.append(
                    {
                        "parent": parent,
                        "blocks": len(node.blocks),
                        "depth": node.depth,
                        "locked": node.locked,
                        "hits": node.hits,
                        "ids": np.frombuffer(node.ids, "<i4", min(16, len(node.ids) // ID_BYTES)).tolist(),
                    }
                )
                stack.extend((child, len(nodes) - 1) for child in node.children.values())
            result.append({"namespace": namespace._asdict(), "nodes": nodes})
        return result

    # ------------------------------------------------------------ inside

    def _root(self, namespace: Namespace) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, b"", [])
            self._namespaces[id(root)] = namespace
        return root

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
        if self._order.segmented:
            self._protect(node)

    def _protect(self, node: Node) -> None:
        """What is used again is protected, and all above it: they were used at least as often."""
        while not node.protected and node.parent is not None:
            if node.stamp:
                self._order.discard(node)
                node.protected = True
                self._order.push(node)
            node.protected = True
            self._order.on_probation -= len(node.blocks)
            node = node.parent

    def _lock(self, node: Node) -> None:
        was = node.locked
        node.leases += 1
        while not was:
            self._locked += len(node.blocks)
            self._order.discard(node)
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
                self._order.push(node)
            parent.locked_children -= 1
            node = parent

    def _move(self, serial: int, old: Node, new: Node) -> None:
        """Move a lease, and the pending mark that follows it, to another node."""
        self._leases[serial] = new
        self._lock(new)
        held = self._pending.get(serial)
        if held is not None:
            pending = held[1]
            self._withdraw(serial)
            self._pending[serial] = (new, pending)
            if new.pending is None:
                new.pending = []
            new.pending.append(pending)
        self._unlock(old)

    def _withdraw(self, serial: int) -> None:
        held = self._pending.pop(serial, None)
        if held is not None:
            node, pending = held
            assert node.pending is not None
            node.pending.remove(pending)
            if not node.pending:
                node.pending = None

    def _split(self, node: Node, offset: int) -> Node:
        """Cut an edge after ``offset`` blocks; the new upper node. The lower one keeps its identity and its leases."""
        self._version += 1
        parent = node.parent
        assert parent is not None and 0 < offset < len(node.blocks)
        cut = offset * self._block_bytes
        key = node.ids[: self._block_bytes]
        upper = Node(parent, node.ids[:cut], node.blocks[:offset])
        upper.last, upper.priority, upper.retain_until = node.last, node.priority, node.retain_until
        upper.protected = node.protected
        if node.prints is not None:
            upper.prints, node.prints = node.prints[:offset], node.prints[offset:]
        parent.replace_child(key, upper)
        node.ids = node.ids[cut:]
        node.blocks = node.blocks[offset:]
        node.parent = upper
        upper.add_child(node.ids[: self._block_bytes], node)
        upper.locked_children = 1 if node.locked else 0
        return upper

    def _append(self, node: Node, own: bool, ids: bytes, blocks: list[int]) -> Node:
        """Hang new blocks below ``node``, into its own edge where nobody else could tell."""
        if self.events is not None:
            self.events.add(CacheEvent("stored", self._namespaces[id(node.root)], node.depth, tuple(blocks), ids))
        if self._order.segmented:
            return self._append_segmented(node, own, ids, blocks)
        return self._hang(node, own, ids, blocks, None, protected=False)

    def _append_segmented(self, node: Node, own: bool, ids: bytes, blocks: list[int]) -> Node:
        """As ``_append``, in runs of blocks that were evicted not long ago, and of others."""
        step, shadows = self._block_bytes, self._order.shadows
        mark = node.print
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
        if not protected:
            self._order.on_probation += len(blocks)
        if own and node.protected == protected and node.parent is not None and not node.children and node.leases == 1:
            node.ids += ids
            node.blocks = node.blocks + blocks
            node.depth += len(blocks)
            if prints is not None and node.prints is not None:
                node.prints += prints
            self._locked += len(blocks)
            return node
        child = Node(node, ids, list(blocks))
        child.last = node.last
        child.priority = node.priority
        child.protected, child.prints = protected, prints
        node.add_child(ids[: self._block_bytes], child)
        if node.stamp:
            self._order.discard(node)
        return child

    def _cut(self, node: Node, count: int) -> int:
        """Free up to ``count`` blocks from the end of an unlocked leaf; the leaf goes when nothing is left of it."""
        self._version += 1
        keep = max(len(node.blocks) - count, 0)
        gone = node.blocks[keep:]
        if self.events is not None:
            ids = node.ids[keep * self._block_bytes :]
            depth = node.depth - len(gone)
            self.events.add(CacheEvent("removed", self._namespaces[id(node.root)], depth, tuple(gone), ids))
        self.pool.discard(gone)
        if not node.protected:
            self._order.on_probation -= len(gone)
        if node.prints is not None:
            for fingerprint in node.prints[keep:]:
                self._order.shadows.add(fingerprint)
            del node.prints[keep:]
        if keep:
            node.blocks = node.blocks[:keep]
            node.ids = node.ids[: keep * self._block_bytes]
            node.depth -= len(gone)
            return len(gone)
        parent = node.parent
        assert parent is not None
        self._order.discard(node)
        parent.remove_child(node.ids[: self._block_bytes])
        node.parent = None
        parent.last = max(parent.last, node.last)
        parent.hits += node.hits
        if not parent.children and not parent.locked:
            if parent.parent is None:
                self._drop_root(parent)
            else:
                self._order.push(parent)
        return len(gone)

    def _drop_root(self, root: Node) -> None:
        namespace = self._namespaces.pop(id(root))
        del self._roots[namespace]
