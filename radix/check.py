"""Integrity of a tree, recounted from scratch: for tests and for the scheduler's debug mode."""

from __future__ import annotations

from collections import Counter

from .blocks import TREE
from .node import Node
from .tree import RadixTree


class TreeCorrupt(AssertionError):
    """The tree's books do not agree with what is in it."""


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise TreeCorrupt(what)


def check_tree(tree: RadixTree) -> None:
    """Raise TreeCorrupt or BlockError at the first disagreement."""
    tree.pool.check()
    leases = Counter(id(node) for node in tree._leases.values())
    stored, locked, queued, probation = 0, 0, 0, 0
    seen: set[int] = set()
    nodes: set[int] = set()
    for root in tree._roots.values():
        stack: list[Node] = [root]
        while stack:
            node = stack.pop()
            nodes.add(id(node))
            _check_node(tree, node, leases[id(node)])
            for block in node.blocks:
                _expect(block not in seen, f"block {block} stands in two places")
                _expect(tree.pool.state(block) == TREE, f"block {block} is in the tree, the pool says otherwise")
                seen.add(block)
            stored += len(node.blocks)
            locked += len(node.blocks) if node.locked else 0
            queued += 1 if node.stamp else 0
            probation += 0 if node.protected else len(node.blocks)
            stack.extend(node.children.values())
    _expect(stored == tree.stored_count, f"{stored} blocks are in the tree, counted {tree.stored_count}")
    _expect(locked == tree.locked_count, f"{locked} blocks are locked, counted {tree.locked_count}")
    _expect(queued == len(tree._order), f"{queued} leaves are marked evictable, the queue counts {len(tree._order)}")
    counted = tree._order.on_probation
    _expect(probation == counted, f"{probation} blocks are on probation, counted {counted}")
    _expect(set(leases) <= nodes, "a lease holds a node that is not in the tree")
    for node, pending in tree._pending.values():
        _expect(node.pending is not None and pending in node.pending, "a pending mark is lost")


def _check_node(tree: RadixTree, node: Node, leases: int) -> None:
    size = tree.block_size * 4
    _expect(node.leases == leases, f"a node counts {node.leases} leases, {leases} hold it")
    _expect(len(node.ids) == len(node.blocks) * size, "an edge's ids and blocks differ in length")
    _expect(node.keys == sorted(node.children), "a node's keys are not its children, sorted")
    locked_children = 0
    for key, child in node.children.items():
        _expect(child.parent is node and child.root is node.root, "a child does not know its parent")
        _expect(child.ids[:size] == key and bool(child.blocks), "a child stands under a wrong key")
        _expect(child.depth == node.depth + len(child.blocks), "a node's depth is wrong")
        locked_children += child.locked
    _expect(node.locked_children == locked_children, "a node miscounts its locked children")
    evictable = node.parent is not None and not node.locked and not node.children
    _expect(bool(node.stamp) == evictable, f"a node is {'not ' * evictable}in the eviction queue")
