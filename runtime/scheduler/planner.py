"""One step: who computes how many tokens. Decode rows first, then prefill chunks, then newcomers, under one budget.

There are no phases: a row's computed count catches up with its known ids. A queued plan (one made while others are at
the worker) knows only upper bounds, so it names ceilings.
"""

from __future__ import annotations

from collections.abc import Collection

from ramet.radix import Match
from ramet.runtime.protocol.messages import StepPlan, ToWorker

from .admission import demand_of, fits
from .books import Books
from .branch import Branch, Row, State
from .draft import Draft
from .lifecycle import Lifecycle
from .memory import Memory
from .seating import count_admission, row_start

_LOOKS = 4
"""Rounds of looking for who finds most in the cache, per admission."""
SOLO_BLAME = 2
"""Crashes after which a branch runs alone."""


class Planner:
    def __init__(self, books: Books, lifecycle: Lifecycle) -> None:
        self._books = books
        self._life = lifecycle
        self._full = (-1, -1)
        """(version of the queue, departures) when the next in the queue found no room."""

    def plan(self) -> tuple[list[ToWorker], StepPlan] | None:
        """The next plan, booked as sent; None if there is nothing to do now."""
        books, memory = self._books, self._books.memory
        if memory is None or len(memory.flights) >= books.config.plan_depth:
            return None
        if memory.flights and books.queue.waiting and self._about_to_wake():
            return None
        draft = Draft(books.config.chunk_tokens)
        if books.suspects:
            self._plan_alone(draft, memory)
        else:
            self._force_push_back()
            self._plan_running(draft, memory)
            self._admit(draft, memory)
            if not len(draft) and not memory.flights and not books.running and books.queue.ready:
                self._admit_at_any_price(draft, memory)
        return draft.seal(books) if len(draft) else None

    def _about_to_wake(self) -> bool:
        """Whether a prefix that somebody waits for is complete when the sent plan lands. A plan queued now would be
        without them, often with their owner alone: a step that reads all weights for one token, where waiting costs a
        round trip."""
        for row in self._books.running.values():
            if row.flight and any(tokens <= row.ahead for tokens, _ in row.waiters):
                return True
        return False

    # ------------------------------------------------------------ rows that run

    def _plan_running(self, draft: Draft, memory: Memory) -> None:
        rows = sorted(self._books.running.values(), key=lambda row: row.branch.order)
        if len(rows) > draft.budget:
            rows.sort(key=lambda row: row.last_step)
        prefill: list[Row] = []
        for row in rows:
            if row.branch.length - row.ahead > 1:
                prefill.append(row)
            elif not row.leaving:
                self._plan_row(row, draft, memory)
        for row in prefill:
            if not row.leaving:
                self._plan_row(row, draft, memory)

    def _plan_row(self, row: Row, draft: Draft, memory: Memory) -> bool:
        """Give the row its part of the step, and the blocks for it."""
        if draft.budget <= 0:
            return False
        branch = row.branch
        known = branch.length - row.ahead
        cost = min(max(known, 1), draft.budget)
        ceiling = cost
        if branch.constraint_key and cost >= known:
            ceiling += self._books.config.spare_forced
        room = branch.final_length - row.ahead
        if row.flight and known <= 0:
            room = min(room - 1, memory.tokens - row.ahead)  # the last id that it may still get needs no KV
            if room <= 0:
                return False
        wanted = max(min(ceiling, room), 1)
        while not (ceiling := _grant(row, wanted, min(cost, wanted), memory)):
            if not self._make_room(row, draft, memory):
                return False
        draft.add(row, ceiling, cost)
        return True

    def _make_room(self, row: Row, draft: Draft, memory: Memory) -> bool:
        """Take blocks from somebody who ranks below ``row``; True if it is worth asking for them again now."""
        books = self._books
        for branch in books.parked.values():
            if branch.row is not None and not branch.row.flight:
                self._life.demote(branch)
                return True
        if books.returning:
            return False
        victim = self._victim(row)
        if victim is None:
            if len(books.running) > 1:
                self.push_back(row, draft)
            elif not memory.flights:
                limit = f"the KV pool of {memory.tokens} tokens is used up at {row.branch.length} tokens"
                self._life.finish(row.branch, "length", message=f"{limit}; give a larger --kv-tokens")
            return False
        flying = bool(victim.flight)
        self.push_back(victim, draft)
        return not flying

    def _victim(self, needy: Row) -> Row | None:
        """Of the rows that rank below: least priority first, then what is cheapest to compute again."""
        block_size = self._books.memory.block_size if self._books.memory else 1
        below = [row for row in self._books.running.values() if row.branch.order > needy.branch.order]
        if not below:
            return None
        return min(below, key=lambda row: _cost(row, block_size))

    def push_back(self, row: Row, draft: Draft) -> None:
        draft.remove(row)
        self._books.counters.preemptions += 1
        self._life.push_back(row)

    def _force_push_back(self) -> None:
        """Test switch: at every k-th step push back a row that has given an id since it was seated (so all end)."""
        every, step = self._books.config.switches.preempt_every, self._books.step
        if every > 0 and (step + 1) % every == 0:
            rows = [row for row in self._books.running.values() if row.branch.length > row.seated_at]
            if rows:
                self.push_back(rows[(step // every) % len(rows)], Draft(0))

    # ------------------------------------------------------------ newcomers

    def _admit(self, draft: Draft, memory: Memory) -> None:
        books = self._books
        while draft.budget > 0:
            state = (books.queue.version, memory.departures)
            if state == self._full:
                return
            picked = self._pick(memory)
            if picked is None:
                return
            branch, ids, match = picked
            if self._waits(branch, match, memory):
                continue
            if not self._has_room(branch, match, memory):
                if self._displace(branch, match, draft, memory):
                    continue
                self._full = (books.queue.version, memory.departures)
                return
            if not self._seat(branch, ids, match, draft, memory):
                return

    def _pick(self, memory: Memory) -> tuple[Branch, bytes, Match] | None:
        """Of the candidates the one that finds most in the cache; the first of them in doubt.

        What is found is noted, and with that the next candidates may be others: those that were remembered to find
        more than this one does now.
        """
        queue = self._books.queue
        best: tuple[Branch, bytes, Match] | None = None
        most = -1
        looked: set[int] = set()
        for _ in range(_LOOKS):
            candidates = [branch for branch in queue.candidates() if id(branch) not in looked]
            for branch in candidates:
                looked.add(id(branch))
                ids = bytes(branch.ids)
                match = memory.match(branch, ids)
                cached = match.tokens + (match.tail.tokens if match.tail else 0)
                queue.note(branch, cached)
                if cached > most:
                    best, most = (branch, ids, match), cached
            if not candidates or self._books.config.switches.order != "cache-aware":
                break
        return best

    def _has_room(self, branch: Branch, match: Match, memory: Memory) -> bool:
        books = self._books
        if len(books.running) >= books.config.max_rows:
            return False
        return not books.running or self._fits(branch, match, memory, books.running.values())

    def _displace(self, branch: Branch, match: Match, draft: Draft, memory: Memory) -> bool:
        """Push back a row of lower priority, if that makes room for ``branch``; True if it is to be tried again now."""
        books = self._books
        if books.returning:
            return False
        lower = [row for row in books.running.values() if row.branch.priority < branch.priority]
        if not lower:
            return False
        others = [row for row in books.running.values() if row.branch.priority >= branch.priority]
        if others and not self._fits(branch, match, memory, others):
            return False
        victim = min(lower, key=lambda row: _cost(row, memory.block_size))
        flying = bool(victim.flight)
        self.push_back(victim, draft)
        return not flying

    def _waits(self, branch: Branch, match: Match, memory: Memory) -> bool:
        """Wait, holding nothing, for a prefix that somebody is computing already."""
        if not self._books.config.switches.pending:
            return False
        owner, tokens = None, 0
        if match.pending is not None:
            owner, tokens = memory.owner(match.pending.owner), match.pending.tokens
        parent = branch.parent.row if branch.parent is not None else None
        if parent is not None and not parent.leaving and branch.parent is not None:
            target = min(branch.at, branch.match_limit)
            if branch.parent.state is State.RUNNING and target - max(parent.computed, match.tokens) > 1:
                owner, tokens = parent, target
        if owner is None or owner.leaving or owner.computed >= tokens:
            return False
        self._books.queue.wait(branch, owner, tokens)
        if branch.priority > owner.branch.priority:
            owner.branch.priority = branch.priority
        return True

    def _fits(self, branch: Branch, match: Match, memory: Memory, rows: Collection[Row]) -> bool:
        """Whether a batch of ``rows`` with the newcomer stays within the pool to the end of every row.

        Time changes nothing in that: rows grow as foreseen. So a refusal holds until somebody leaves.
        """
        books, size = self._books, memory.block_size
        demands = [demand_of(row.branch, row, 0, books.lengths.remaining(row.branch), size) for row in rows]
        own = sum(len(row.table) - row.matched for row in books.running.values())
        for parked in books.parked.values():
            if parked.row is not None:
                own += len(parked.row.table) - parked.row.matched
        demands.append(demand_of(branch, None, len(match.blocks), books.lengths.remaining(branch), size))
        shared = max(memory.held - own, 0) + match.unlocked
        return fits(demands, memory.pool.total - shared, size)

    def _seat(self, branch: Branch, ids: bytes, match: Match, draft: Draft, memory: Memory) -> bool:
        books = self._books
        for with_tail in (True, False):
            books.rows_made += 1
            row = memory.seat(books.rows_made, branch, match, with_tail=with_tail)
            branch.row = row
            if self._grant_first(row, draft, memory):
                break
            memory.leave(row)
            branch.row = None
        else:
            return False
        if books.queue.admit(branch):
            books.counters.overtakes += 1
        branch.state = State.RUNNING
        books.running[row.id] = row
        books.queue.shares.charge(branch.request.namespace.tenant, max(branch.n_prompt - row.computed, 0))
        memory.announce(row, ids)
        count_admission(books, branch, row)
        self._life.leave_parent(branch)
        row.start = row_start(books, branch, row, ids)
        return True

    def _grant_first(self, row: Row, draft: Draft, memory: Memory) -> bool:
        """Blocks and budget for a newcomer's first chunk, from what is free or evictable alone."""
        branch = row.branch
        cost = min(branch.length - row.computed, draft.budget)
        ceiling = cost
        if branch.constraint_key and cost == branch.length - row.computed:
            ceiling += self._books.config.spare_forced
        wanted = max(min(ceiling, branch.final_length - row.computed), 1)
        granted = _grant(row, wanted, min(cost, wanted), memory)
        if granted:
            draft.add(row, granted, cost)
        return granted > 0

    def _admit_at_any_price(self, draft: Draft, memory: Memory) -> None:
        """Nothing runs and the first in the queue found no room: parked branches give theirs up, oldest first."""
        books = self._books
        while not len(draft) and books.queue.ready and not books.running:
            parked = next(iter(books.parked.values()), None)
            if parked is not None:
                self._life.demote(parked)
            elif (branch := next(iter(books.queue), None)) is not None:
                needed = -(-branch.length // memory.block_size)
                self._life.finish(
                    branch,
                    "error",
                    message=f"{branch.length} tokens need {needed} KV blocks, the pool has {memory.pool.total}",
                )
            self._admit(draft, memory)

    # ------------------------------------------------------------ suspects

    def _plan_alone(self, draft: Draft, memory: Memory) -> None:
        """A branch that was in two crashes runs in plans of its own until it gives a new id or ends."""
        books = self._books
        if memory.flights:
            return
        branch = min(books.suspects.values(), key=lambda b: b.order)
        if branch.state is State.RUNNING and branch.row is not None:
            self._plan_row(branch.row, draft, memory)
            return
        if branch.state is State.WAITING:
            books.queue.remove(branch)
            books.queue.add(branch)
        ids = bytes(branch.ids)
        while not self._seat(branch, ids, memory.match(branch, ids), draft, memory):
            blocker = next((row for row in books.running.values()), None)
            if books.parked:
                self._life.demote(next(iter(books.parked.values())))
            elif blocker is not None:
                self.push_back(blocker, draft)
            else:
                return


def _grant(row: Row, wanted: int, needed: int, memory: Memory) -> int:
    """Blocks for ``wanted`` more ids of the row, or as many as there is room for: what is above ``needed`` saves steps
    and changes no id. The ids that it has room for; 0, changing nothing, if not even ``needed``."""
    if memory.grow(row, min(row.ahead + wanted, row.branch.final_length)):
        return wanted
    if not memory.grow(row, row.ahead + needed):
        return 0
    return max(needed, min(wanted, len(row.table) * memory.block_size - row.ahead))


def _cost(row: Row, block_size: int) -> tuple[int, int, int]:
    """What pushing a row back costs: its priority first, then what is to be computed again, the latest in doubt."""
    return (row.branch.priority, row.computed - row.matched * block_size, -row.branch.request.seq)
