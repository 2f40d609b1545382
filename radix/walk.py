"""The read-only walk: what a tree holds of a sequence, and where the walk ends."""

from __future__ import annotations

from dataclasses import dataclass

from .handles import Match, TailMatch
from .namespace import Namespace
from .node import ID_BYTES, Node, common_ids
from .pending import best_pending


@dataclass(frozen=True, slots=True)
class Place:
    """End of a walk: ``offset`` blocks of the edge of ``node`` (all of them: at its end)."""

    node: Node
    offset: int
    tail_node: Node | None


def nothing(namespace: Namespace, ids: bytes, limit: int, version: int) -> Match:
    """A match of nothing at all."""
    return Match(namespace, (), 0, None, None, 0, ids, limit, version, None)


def walk(root: Node, namespace: Namespace, ids: bytes, limit: int, block_size: int, version: int) -> Match:
    """Match at most ``limit`` tokens of ``ids`` below ``root``.

    ids     |=== edge ===|=== edge ===|== part of an edge ==|.. tail ..|
            root         node         inside, offset blocks
    """
    step = block_size * ID_BYTES
    end = limit // block_size * step
    node, at, offset, unlocked = root, 0, 0, 0
    blocks: list[int] = []
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
        inside = child
        offset = common_ids(edge, 0, ids, at, (end - at) // ID_BYTES) // block_size
        blocks += child.blocks[:offset]
        unlocked += 0 if child.locked else offset
        at += offset * step
        break
    tokens = len(blocks) * block_size
    tail, tail_node = _tail(node, inside, offset, ids, at, limit, block_size)
    pending = None
    if inside is None and node.pending:
        pending = best_pending(node.pending, ids, tokens, limit, block_size)
    place = Place(inside or node, offset if inside else len(node.blocks), tail_node)
    return Match(namespace, tuple(blocks), tokens, tail, pending, unlocked, ids, limit, version, place)


def _tail(
    node: Node, inside: Node | None, offset: int, ids: bytes, at: int, limit: int, block_size: int
) -> tuple[TailMatch | None, Node | None]:
    """The cached block that agrees with the most of what follows: the edge's next one, or the best child's first."""
    want = min(limit - at // ID_BYTES, block_size)
    if want <= 0:
        return None, None
    if inside is not None:
        agree = common_ids(inside.ids, offset * block_size * ID_BYTES, ids, at, want)
        return (TailMatch(inside.blocks[offset], agree), inside) if agree else (None, None)
    found = node.best_child(ids[at : at + want * ID_BYTES])
    if found is None:
        return None, None
    return TailMatch(found[0].blocks[0], found[1]), found[0]
