"""The device's KV as the scheduler sees it: pool, tree, and the rule of how long a block lives.

A block that a sent plan names becomes free, or evictable, only in the apply of the last plan that names it. So what a
row gives up while plans are in flight is booked on the last of them and done when it lands.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ramet.radix import BlockPool, EventLog, Match, Namespace, RadixTree, TailMatch
from ramet.radix.check import check_tree
from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.protocol.messages import BlockCopy

from .branch import ID_BYTES, Branch, Hold, Row

GROUP_TOKENS = 16
"""Tokens that attention reads at once where their blocks stand side by side (``TILE`` of the C++ kernels)."""


@dataclass(slots=True, eq=False)
class Flight:
    """A plan that was sent and has not come back."""

    step: int
    rows: list[Row]
    holds: list[Hold] = field(default_factory=list)
    leaving: list[Row] = field(default_factory=list)
    """Rows to tear down when it lands."""
    retired: list[int] = field(default_factory=list)
    """Private blocks to free when it lands."""


class Memory:
    """Blocks of one device. A new device (a new worker) is a new Memory."""

    def __init__(
        self, blocks: int, block_size: int, fingerprint: str, config: SchedulerConfig, events: EventLog | None = None
    ) -> None:
        self.block_size = block_size
        self.fingerprint = fingerprint
        self.switches = config.switches
        self.pool = BlockPool(blocks, max(GROUP_TOKENS // block_size, 1))
        self.tree = RadixTree(
            self.pool,
            block_size,
            policy=config.policy,
            quotas={tenant: tokens // block_size for tenant, tokens in config.quotas.items()},
            retained_share=config.retained_share,
            events=events,
        )
        self.flights: deque[Flight] = deque()
        self._pins: dict[int, list[Hold]] = {}
        self._orphans: set[int] = set()
        """Pinned blocks whose owner is gone."""
        self.departures = 0
        """Times that something was given up: until the next one, who found no room finds none."""
        self._owners: dict[int, Row] = {}
        """Rows whose prefix is pending, by the serial of their lease."""

    @property
    def tokens(self) -> int:
        return self.pool.total * self.block_size

    @property
    def held(self) -> int:
        """Blocks that cannot be had without ending or pushing back somebody."""
        return self.pool.total - self.pool.free_count - self.tree.evictable_count

    # ------------------------------------------------------------ a row comes

    def match(self, branch: Branch, ids: bytes) -> Match:
        namespace = self._namespace(branch)
        if not self.switches.tree or self.switches.force_miss:
            return Match(namespace, (), 0, None, None, 0, ids, 0, -1, None)
        return self.tree.match(namespace, ids, branch.match_limit)

    def owner(self, serial: int) -> Row | None:
        return self._owners.get(serial)

    def seat(self, row_id: int, branch: Branch, match: Match, *, with_tail: bool = True) -> Row:
        """Give the branch a row: lease what matched, and copy the head of the first partial block if one is known.

        No private block is taken beyond the copy's target; ``grow`` grants the rest, plan by plan.
        """
        hold, copy = self._copy_source(branch, match) if with_tail else (None, None)
        lease = None
        if self.switches.tree:
            lease = self.tree.acquire(match) if match.place is not None else self.tree.acquire_root(match.namespace)
        row = Row(row_id, branch, list(match.blocks), lease, len(match.blocks), match.tokens, len(match.blocks))
        if hold is not None and copy is not None:
            target = self._take(1, row.table)
            if target is None:
                self._let_go(hold)
            else:
                row.table += target
                row.computed += copy.tokens
                row.hold = hold
                row.copy = BlockCopy(copy.block, target[0], copy.tokens)
        row.ahead = row.computed
        row.seated_at = branch.length
        return row

    def announce(self, row: Row, ids: bytes) -> None:
        """Others may wait for the whole blocks of ``ids`` that the row is about to compute."""
        until = len(ids) // ID_BYTES // self.block_size * self.block_size
        if row.lease is None or until <= row.computed or not self.switches.pending:
            return
        self.tree.announce(row.lease, ids, until)
        self._owners[row.lease.serial] = row
        row.pending_until = until

    def grow(self, row: Row, tokens: int) -> bool:
        """Extend the row's table to hold ``tokens``; False, changing nothing, if the blocks are not to be had."""
        need = -(-tokens // self.block_size) - len(row.table)
        if need <= 0:
            return True
        blocks = self._take(need, row.table)
        if blocks is None:
            return False
        row.table += blocks
        row.fresh += blocks
        return True

    # ------------------------------------------------------------ a row goes on

    def store(self, row: Row) -> None:
        """Commit the whole blocks that are complete now; duplicates are replaced in the table, then retired."""
        full = row.computed // self.block_size
        if full <= row.stored or row.lease is None:
            return
        span = self.block_size * ID_BYTES
        ids = bytes(memoryview(row.branch.ids)[row.stored * span : full * span])
        mine = row.table[row.stored : full]
        done = self.tree.commit(row.lease, ids, mine)
        row.lease = done.lease
        for index, (old, new) in enumerate(zip(mine, done.blocks, strict=True), row.stored):
            if old != new:
                row.table[index] = new
                if old in row.fresh:
                    row.fresh[row.fresh.index(old)] = new
                else:
                    row.replaced.append((index, new))
            elif old in self._pins:
                for hold in self._pins.pop(old):
                    hold.lease = self.tree.share(done.lease)
        row.stored = full
        if done.replaced:
            self._retire(row, done.replaced)
        if row.pending_until and row.computed >= row.pending_until:
            self.withdraw(row)

    def leave(self, row: Row) -> None:
        """The row gives up all it holds, at once or when the last plan that names it lands."""
        row.leaving = True
        self.withdraw(row)
        flight = self._flight(row.last_step)
        if flight is not None:
            flight.leaving.append(row)
        else:
            self._tear_down(row)

    # ------------------------------------------------------------ plans

    def sent(self, step: int, rows: list[Row]) -> None:
        flight = Flight(step, rows)
        for row in rows:
            row.last_step = step
            if row.hold is not None:
                flight.holds.append(row.hold)
                row.hold = None
        self.flights.append(flight)

    def landed(self) -> Flight:
        """The oldest plan is done: let go what its copies held. ``settle`` follows once its results are taken."""
        flight = self.flights.popleft()
        for hold in flight.holds:
            self._let_go(hold)
        return flight

    def settle(self, flight: Flight) -> None:
        for row in flight.leaving:
            self._tear_down(row)
        self._free(flight.retired)

    # ------------------------------------------------------------ books

    def check(self, rows: list[Row]) -> None:
        """Invariant 2, recounted: every private block is one of ``rows``', an orphan, or retired."""
        check_tree(self.tree)
        private: list[int] = list(self._orphans)
        for flight in self.flights:
            private += [block for block in flight.retired if block not in self._orphans]
            for row in flight.leaving:
                private += row.table[row.stored :]
        for row in rows:
            private += row.table[row.stored :]
        if len(set(private)) != len(private):
            raise AssertionError("a private block has two owners")
        if len(private) != self.pool.private_count:
            raise AssertionError(
                f"{len(private)} private blocks have an owner, the pool counts {self.pool.private_count}"
            )

    # ------------------------------------------------------------ inside

    def _namespace(self, branch: Branch) -> Namespace:
        own = branch.request.namespace
        return Namespace(own.tenant, own.salt, own.adapter, self.fingerprint)

    def _copy_source(self, branch: Branch, match: Match) -> tuple[Hold | None, TailMatch | None]:
        """The longest known head of the first block that did not match: in the tree, or in the parent's own tail."""
        private = self._parent_tail(branch, match)
        cached = match.tail
        if private is not None and (cached is None or private.tokens > cached.tokens):
            hold = Hold(None, private.block)
            self._pins.setdefault(private.block, []).append(hold)
            return hold, private
        if cached is not None:
            return Hold(self.tree.acquire_tail(match), -1), cached
        return None, None

    def _parent_tail(self, branch: Branch, match: Match) -> TailMatch | None:
        parent = branch.parent.row if branch.parent is not None else None
        if parent is None or parent.leaving or not self.switches.tree or self.switches.force_miss:
            return None
        index = match.tokens // self.block_size
        if not parent.stored <= index < len(parent.table):
            return None
        tokens = min(branch.at, parent.computed, branch.match_limit) - match.tokens
        return TailMatch(parent.table[index], min(tokens, self.block_size)) if tokens > 0 else None

    def _take(self, count: int, table: list[int]) -> list[int] | None:
        """Blocks that are to follow ``table``."""
        short = count - self.pool.free_count
        if short > 0 and (short > self.tree.evictable_count or self.tree.evict(short) < short):
            return None
        return self.pool.allocate(count, len(table), table[-1] if table else -1)

    def _flight(self, step: int) -> Flight | None:
        for flight in reversed(self.flights):
            if flight.step == step:
                return flight
        return None

    def _retire(self, row: Row, blocks: tuple[int, ...]) -> None:
        flight = self._flight(row.last_step)
        if flight is not None:
            flight.retired += blocks
        else:
            self._free(blocks)

    def _tear_down(self, row: Row) -> None:
        self.departures += 1
        if row.hold is not None:
            self._let_go(row.hold)
            row.hold = None
        if row.lease is not None:
            self.tree.release(
                row.lease,
                priority=row.branch.request.priority,
                retain_until=row.retain_until,
                spent=row.spent,
            )
            row.lease = None
        self._free(row.table[row.stored :])
        row.table = []
        row.stored = 0

    def _free(self, blocks: list[int] | tuple[int, ...]) -> None:
        if not self._pins:
            self.pool.free(blocks)
            return
        self._orphans.update(block for block in blocks if block in self._pins)
        self.pool.free(block for block in blocks if block not in self._pins)

    def _let_go(self, hold: Hold) -> None:
        self.departures += 1
        if hold.lease is not None:
            self.tree.release(hold.lease)
            return
        holds = self._pins[hold.block]
        holds.remove(hold)
        if not holds:
            del self._pins[hold.block]
            if hold.block in self._orphans:
                self._orphans.discard(hold.block)
                self.pool.free([hold.block])

    def withdraw(self, row: Row) -> None:
        """Nobody is to wait for the row any more. Idempotent."""
        if row.pending_until and row.lease is not None:
            self.tree.withdraw(row.lease)
            self._owners.pop(row.lease.serial, None)
            row.pending_until = 0
