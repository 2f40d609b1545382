"""The shape of a tree, for people."""

from __future__ import annotations

import numpy as np

from .node import ID_BYTES, Node
from .tree import RadixTree

_SHOWN_IDS = 16


def dump(tree: RadixTree) -> list[dict[str, object]]:
    """Per namespace its nodes, parents first: ``parent`` (index, -1: the root), ``blocks``, ``depth`` (blocks up to its
    end), ``locked``, ``hits`` and the first ids of the edge."""
    result: list[dict[str, object]] = []
    for namespace, root in tree._roots.items():
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
                    "ids": np.frombuffer(node.ids, "<i4", min(_SHOWN_IDS, len(node.ids) // ID_BYTES)).tolist(),
                }
            )
            stack.extend((child, len(nodes) - 1) for child in node.children.values())
        result.append({"namespace": namespace._asdict(), "nodes": nodes})
    return result
