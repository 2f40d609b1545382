"""Pending prefixes: what rows are computing right now, hung where their leases stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .handles import PendingMatch
from .node import ID_BYTES, Node, common_ids

WORTH_TOKENS = 16
"""Waiting pays from so many tokens on (or a block's, if that is less)."""


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """``ids``: all that the owner knows; ``until``: absolute tokens that it will have committed."""

    owner: int
    ids: bytes
    until: int


def best_pending(marks: Sequence[Pending], ids: bytes, tokens: int, limit: int, block_size: int) -> PendingMatch | None:
    """The owner whose work saves most to whom ``tokens`` of ``ids`` matched.

    It pays to wait to the end of the block of divergence, if that will be committed: its head can then be copied.
    """
    best: PendingMatch | None = None
    at = tokens * ID_BYTES
    for mark in marks:
        agree = tokens + common_ids(mark.ids, at, ids, at, limit - tokens)
        useful = min(agree, mark.until)
        if useful - tokens < min(block_size, WORTH_TOKENS):
            continue
        wait = min(-(-useful // block_size) * block_size, mark.until)
        if best is None or wait > best.tokens:
            best = PendingMatch(mark.owner, wait)
    return best


class PendingMarks:
    """The marks of a tree by the serial of their owner's lease."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Node, Pending]] = {}

    def __iter__(self) -> Iterator[tuple[Node, Pending]]:
        return iter(self._held.values())

    def put(self, serial: int, node: Node, ids: bytes, until: int) -> None:
        self.drop(serial)
        self._hang(serial, node, Pending(serial, ids, until))

    def move(self, serial: int, node: Node) -> None:
        """The lease stands at ``node`` now."""
        held = self._held.get(serial)
        if held is not None:
            self.drop(serial)
            self._hang(serial, node, held[1])

    def drop(self, serial: int) -> None:
        held = self._held.pop(serial, None)
        if held is not None:
            node, mark = held
            assert node.pending is not None
            node.pending.remove(mark)
            if not node.pending:
                node.pending = None

    def clear(self) -> None:
        self._held.clear()

    def _hang(self, serial: int, node: Node, mark: Pending) -> None:
        self._held[serial] = (node, mark)
        if node.pending is None:
            node.pending = []
        node.pending.append(mark)
