"""The scheduler's nouns: a request, its branches, and the row that a branch has while it is on the device.

A branch outlives its rows: pushed back or orphaned by a dead worker, it goes to the queue with all its ids and gets a
new row later.

    ids       0 ...... stored ........ computed ........ ahead ........ len(ids)
    KV        | in the tree | private, done | in sent plans |  to be planned  |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from ramet.radix import Lease
from ramet.runtime.protocol.messages import (
    BlockCopy,
    BranchRef,
    Limits,
    Namespace,
    RowStart,
    Sampling,
    Stops,
    TokenLogprob,
    Usage,
)

ID_BYTES = 4


class State(Enum):
    """Where a branch stands. Ended branches may still be kept, or hold their tail for children that are not seated."""

    QUEUED = auto()
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One Submit or Score: what its branches have in common."""

    client: bytes
    id: int
    namespace: Namespace
    priority: int
    seq: int
    """Order of arrival."""
    deadline: float
    is_score: bool = False
    fan_out: int = 0
    retain_s: float = 0.0
    branches: list[Branch] = field(default_factory=list)
    open: int = 0
    """Branches that have not ended."""
    deadline_ms: int = -1
    closed: bool = False
    """Of a Score: its one terminal message is sent."""


@dataclass(slots=True, eq=False, repr=False)
class Branch:
    request: Request
    choice: int
    ids: bytearray
    n_prompt: int
    sampling: Sampling
    limits: Limits
    stops: Stops
    logits_from: int = -1
    logprobs: int = -1
    constraint_key: str = ""
    parent: Branch | None = None
    """Whose partial tail may be copied: the branch it was forked from, or the first of its request."""
    at: int = 0
    state: State = State.QUEUED
    row: Row | None = None
    priority: int = 0
    """Its request's, or a waiter's if that is higher."""
    blame: int = 0
    """Crashes of plans that named it, since its last new id."""
    unseated_children: int = 0
    """Branches that may copy its tail and have not had a row yet."""
    seated: bool = False
    """Had a row before: the first admission has been counted."""
    kept: bool = False
    scored: list[TokenLogprob] = field(default_factory=list)
    """Of a Score: the log-probabilities so far."""
    scored_until: int = 0
    """Absolute index of the next prompt id to be scored."""
    cached: int = 0
    high_water: int = 0
    """Prompt ids that were computed or found at least once."""
    computed: int = 0
    """Prompt ids computed, each counted once."""
    peak_computed: int = 0
    """Ids of which KV was computed at least once."""
    forced: int = 0
    sampled: int = 0
    inherited: Usage | None = None
    """Of a resend: its usage before the scheduler's death."""
    cached_hint: int = 0
    """Tokens that it found in the cache when the queue looked last."""
    waiting_on: Row | None = None

    @property
    def ref(self) -> BranchRef:
        return (self.request.id, self.choice)

    @property
    def length(self) -> int:
        return len(self.ids) // ID_BYTES

    @property
    def generated(self) -> int:
        return self.length - self.n_prompt

    @property
    def arrival(self) -> tuple[int, int]:
        return (self.request.seq, self.choice)

    @property
    def order(self) -> tuple[int, int, int]:
        """Smaller goes first: priority, then arrival."""
        return (-self.priority, self.request.seq, self.choice)

    @property
    def next_logits(self) -> int:
        """Position of the first logits still wanted for scoring the prompt; -1: none."""
        if self.logits_from < 0 or self.scored_until >= self.n_prompt:
            return -1
        return self.scored_until - 1

    @property
    def match_limit(self) -> int:
        """Tokens that may come from the cache: never the last known id, nor any whose logits are wanted."""
        limit = self.length - 1
        wanted = self.next_logits
        return limit if wanted < 0 else min(limit, wanted)

    @property
    def final_length(self) -> int:
        """Longest that it can become."""
        return max(self.n_prompt + self.limits.max_tokens, self.length)

    @property
    def cached_at_first(self) -> int:
        """Prompt ids that its first admission found in the cache."""
        return self.inherited.cached if self.inherited is not None and self.inherited.prompt else self.cached

    def usage(self) -> Usage:
        """What this branch is charged: the prompt of a request is counted in its first choice, and once in a life."""
        cached, computed = (self.cached, self.computed) if self.choice == 0 else (0, 0)
        if self.inherited is not None and self.inherited.prompt:
            cached, computed = self.inherited.cached, self.inherited.prompt - self.inherited.cached
        return Usage(cached + computed, cached, computed, self.forced + self.sampled, self.forced, self.sampled)


@dataclass(slots=True, eq=False)
class Hold:
    """A copy's source, held until the plan that copies it is done: leased if it is in the tree, else pinned."""

    lease: Lease | None
    block: int


@dataclass(slots=True, eq=False, repr=False)
class Row:
    """A branch on the device. ``table``: its blocks, the first ``stored`` of them the tree's under ``lease``."""

    id: int
    branch: Branch
    table: list[int]
    lease: Lease | None
    matched: int
    """Blocks it found in the tree when it was seated."""
    computed: int
    stored: int = 0
    ahead: int = 0
    """Upper bound of ``computed`` once all sent plans are done."""
    flight: deque[tuple[int, int]] = field(default_factory=deque)
    """(step, ceiling) of the sent plans that name it."""
    last_step: int = 0
    fresh: list[int] = field(default_factory=list)
    """Blocks of ``table`` that the worker has not been told of."""
    replaced: list[tuple[int, int]] = field(default_factory=list)
    copy: BlockCopy | None = None
    hold: Hold | None = None
    start: RowStart | None = None
    """To be sent with its first plan."""
    leaving: bool = False
    """No further plan: to be torn down when the sent ones are done."""
    pending_until: int = 0
    retain_until: float = 0.0
    """Soft retention of what it leaves in the tree."""
    spent: bool = False
    """Nobody will use again what it leaves, says who had it."""
    seated_at: int = 0
    """Length of the branch when it got this row."""
    waiters: list[tuple[int, Branch]] = field(default_factory=list)
    """(tokens that must be computed first, who waits for it)."""
