"""The immutable values that cross the border of the tree. No caller touches a node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .namespace import Namespace


@dataclass(frozen=True, slots=True)
class TailMatch:
    """A cached block whose first ``tokens`` ids agree with what follows the matched whole blocks."""

    block: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PendingMatch:
    """A row is computing what follows the match: ``tokens`` (absolute) is how far it pays to wait for ``owner``."""

    owner: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Match:
    """What the tree holds of a sequence. Valid until the tree changes; ``acquire`` walks again if it did.

    ids      0 ...................... tokens ........ tokens + tail.tokens ...... len(ids)
             | whole blocks, ``blocks`` | copy of a block's head  |  to be computed
    """

    namespace: Namespace
    blocks: tuple[int, ...]
    tokens: int
    tail: TailMatch | None
    pending: PendingMatch | None
    unlocked: int
    """Matched blocks that no lease holds: what ``acquire`` takes out of the evictable ones."""
    ids: bytes = field(repr=False)
    limit: int
    version: int
    place: Any = field(repr=False, compare=False)
    """Opaque: where the walk ended."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to read a path of the tree, from its root on: none of it is evicted until ``release``.

    ``commit`` moves a lease forward and returns it with its new length; the serial stays, and with it the duty to
    release exactly once. Leases of an older generation (the device was reset) are void: releasing them does nothing.
    """

    generation: int
    serial: int
    blocks: int
    """Length of the path in whole blocks."""


@dataclass(frozen=True, slots=True)
class Commit:
    """``blocks``: the ids that the caller must use from now on for what it committed, in order. ``replaced``: those of
    its own that were duplicates: still its private blocks, to be freed once nothing names them any more."""

    lease: Lease
    blocks: tuple[int, ...]
    replaced: tuple[int, ...]
