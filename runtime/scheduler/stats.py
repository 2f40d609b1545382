"""What the scheduler counts, and how it stands: together the reply to ``stats``."""

from __future__ import annotations

from msgspec import Struct, field


class TokenStats(Struct):
    """``prompt`` = ``cached`` + ``computed`` counts each request's prompt once, at its first admission, as its usage
    does."""

    prompt: int = 0
    cached: int = 0
    computed: int = 0
    forced: int = 0
    sampled: int = 0


class Counters(Struct):
    """Totals since the start. ``row_prompt`` and ``row_cached`` count every row (n choices: n times); ``recomputed``
    are prompt and generated ids computed again after a push-back or a crash."""

    tokens: TokenStats = field(default_factory=TokenStats)
    recomputed: int = 0
    row_prompt: int = 0
    row_cached: int = 0
    preemptions: int = 0
    overtakes: int = 0
    steps: int = 0
    accepted: int = 0
    finished: int = 0
    rejected: int = 0
    crashes: int = 0
    allocated_slots: int = 0
    """KV slots in blocks that rows held, summed over steps; ``unused_slots``: those that held nothing."""
    unused_slots: int = 0


class BlockStats(Struct, frozen=True):
    total: int = 0
    free: int = 0
    private: int = 0
    evictable: int = 0
    locked: int = 0


class RequestStats(Struct, frozen=True):
    """Branches, by state. ``kept``: ended ones that hold their blocks."""

    running: int = 0
    queued: int = 0
    waiting: int = 0
    kept: int = 0


class WasteStats(Struct, frozen=True):
    """KV slots in blocks that rows hold, and those of them that hold nothing (yet). ``mean``: unused over allocated,
    averaged over all steps, weighed by what was allocated."""

    allocated: int = 0
    unused: int = 0
    mean: float = 0.0


class Standing(Struct, frozen=True):
    blocks: BlockStats
    block_size: int
    requests: RequestStats
    waste: WasteStats
    evictions: int
    draining: bool
    step_seconds: float
    """Median time of the last steps at the worker."""
    step_gap: float
    """Median idle time of the worker in front of them."""
    context: int
    """Longest branch in tokens."""
    ready: bool
    """A worker is there."""
