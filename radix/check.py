"""Integrity of a tree, recounted from scratch: for tests and for the scheduler's debug mode."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .blocks import TREE
from .node import Node
from .shelf import Shelf
from .tree import RadixTree


class TreeCorrupt(AssertionError):
    """The tree's books do not agree with what is in it."""


@dataclass
class _Counts:
    stored: int = 0
    locked: int = 0
    retained: int = 0
    seen: set[int] = field(default_factory=set)
    nodes: set[int] = field(default_factory=set)
    shelves: dict[int, list[int]] = field(default_factory=dict)
    """Of each shelf: blocks, blocks on probation, leaves in its queues."""


def check_tree(tree: RadixTree) -> None:
    """Raise TreeCorrupt or BlockError at the first disagreement."""
    tree.pool.check()
    leases = Counter(id(node) for node in tree._leases.values())
    counts = _Counts()
    for root in tree._roots.values():
        stack: list[Node] = [root]
        while stack:
            node = stack.pop()
            _check_node(tree, node, leases[id(node)])
            _count(tree, node, counts)
            stack.extend(node.children.values())
    _expect(counts.stored == tree.stored_count, f"{counts.stored} blocks are stored, counted {tree.stored_count}")
    _expect(counts.locked == tree.locked_count, f"{counts.locked} blocks are locked, counted {tree.locked_count}")
    _expect(
        counts.retained == tree.retained_count <= tree._retention.cap,
        f"{counts.retained} blocks are retained, counted {tree.retained_count} of {tree._retention.cap}",
    )
    _expect(set(leases) <= counts.nodes, "a lease holds a node that is not in the tree")
    for shelf in tree._shelves:
        _check_shelf(shelf, counts.shelves.get(id(shelf), [0, 0, 0]))
    for node, mark in tree._pending:
        _expect(node.pending is not None and mark in node.pending, "a pending mark is lost")


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise TreeCorrupt(what)


def _count(tree: RadixTree, node: Node, counts: _Counts) -> None:
    counts.nodes.add(id(node))
    for block in node.blocks:
        _expect(block not in counts.seen, f"block {block} stands in two places")
        _expect(tree.pool.state(block) == TREE, f"block {block} is in the tree, the pool says otherwise")
        counts.seen.add(block)
    size = len(node.blocks)
    counts.stored += size
    counts.locked += size if node.locked else 0
    counts.retained += size if node.retained else 0
    shelf = counts.shelves.setdefault(id(node.shelf), [0, 0, 0])
    shelf[0] += size
    shelf[1] += 0 if node.protected else size
    shelf[2] += 0 if node.queue is None else 1


def _check_shelf(shelf: Shelf, counted: list[int]) -> None:
    stored, probation, queued = counted
    _expect(stored == shelf.stored, f"{stored} blocks stand on a shelf, counted {shelf.stored}")
    found = shelf.order.on_probation
    _expect(probation == found, f"{probation} blocks are on probation, counted {found}")
    _expect(queued == len(shelf.order), f"{queued} leaves wait for eviction, counted {len(shelf.order)}")
    evictable = shelf.order.first() or shelf.order.first_retained()
    _expect(not shelf.excess or evictable is None, "a tenant keeps more than its quota")


def _check_node(tree: RadixTree, node: Node, leases: int) -> None:
    size = tree.block_size * 4
    _expect(node.leases == leases, f"a node counts {node.leases} leases, {leases} hold it")
    _expect(len(node.ids) == len(node.blocks) * size, "an edge's ids and blocks differ in length")
    _expect(node.keys == sorted(node.children), "a node's keys are not its children, sorted")
    locked_children = 0
    for key, child in node.children.items():
        _expect(child.parent is node and child.shelf is node.shelf, "a child does not know its parent")
        _expect(child.ids[:size] == key and bool(child.blocks), "a child stands under a wrong key")
        _expect(child.depth == node.depth + len(child.blocks), "a node's depth is wrong")
        locked_children += child.locked
    _expect(node.locked_children == locked_children, "a node miscounts its locked children")
    evictable = node.parent is not None and not node.locked and not node.children
    _expect((node.queue is not None) == evictable, f"a node is {'not ' * evictable}waiting for eviction")
