"""Blocks, leases and the prefix tree. Ints and bytes only; deterministic; knows no tensors, requests or processes."""

from .blocks import BlockError, BlockPool, OutOfBlocks
from .events import CacheEvent, EventLog
from .eviction import POLICIES, Policy
from .handles import Commit, Lease, Match, PendingMatch, TailMatch
from .namespace import Namespace
from .tree import LeaseError, RadixTree

__all__ = [
    "POLICIES",
    "BlockError",
    "BlockPool",
    "CacheEvent",
    "Commit",
    "EventLog",
    "Lease",
    "LeaseError",
    "Match",
    "Namespace",
    "OutOfBlocks",
    "PendingMatch",
    "Policy",
    "RadixTree",
    "TailMatch",
]
