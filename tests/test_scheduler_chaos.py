"""Any order of events: a Hypothesis state machine on the KV oracle.

After each operation invariant 2 (every block in exactly one state) and the truth of every id that was said are
checked; at the end of each run invariant 3 (every accepted choice has exactly one terminal message).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from oracle_world import World
from ramet.runtime.protocol.config import SchedulerConfig, Switches
from ramet.runtime.protocol.messages import Stops
from ramet.runtime.scheduler.branch import State

CLIENTS = (b"a", b"b")
PREFIXES = [[(p * 17 + i * 5) % 50 for i in range(40)] for p in range(3)]
KNOWN_OPEN = 40
TROUBLE = ("kill_worker", "fail_step", "kill_scheduler", "kill_frontend")

tokens = st.lists(st.integers(0, 6), min_size=1, max_size=6)
picks = st.integers(0, 1 << 16)


class Chaos(RuleBasedStateMachine):
    """``picks`` choose among what is there at the time."""

    world: World

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 16]),
        pool=st.sampled_from([64, 96, 192, 640]),
        chunk=st.sampled_from([1, 3, 7, 7, 32, 256]),
        rows=st.sampled_from([1, 3, 8]),
        depth=st.sampled_from([1, 1, 2, 3]),
        policy=st.sampled_from(["lru", "lfu", "slru", "priority"]),
        pending=st.booleans(),
        preempt=st.sampled_from([0, 0, 0, 2, 5]),
        miss=st.sampled_from([False, False, False, True]),
        tree=st.sampled_from([True, True, True, False]),
        order=st.sampled_from(["cache-aware", "fcfs", "random"]),
    )
    def begin(
        self, block_size: int, pool: int, chunk: int, rows: int, depth: int, policy: Any, pending: bool, preempt: int,
        miss: bool, tree: bool, order: Any,
    ) -> None:  # fmt: skip
        switches = Switches(pending=pending, preempt_every=preempt, force_miss=miss, tree=tree, order=order)
        self.start(block_size, pool, chunk, rows, depth, policy, switches)

    def start(
        self, block_size: int, pool: int, chunk: int, rows: int, depth: int, policy: Any, switches: Switches
    ) -> None:  # fmt: skip
        config = SchedulerConfig(
            block_size=block_size,
            chunk_tokens=chunk,
            max_rows=rows,
            policy=policy,
            plan_depth=depth,
            check_invariants=True,
            switches=switches,
        )
        self.world = World(blocks=max(pool // block_size, 4), config=config)
        self.world.check_cached = True

    # ------------------------------------------------------------ requests

    @rule(
        prefix=st.integers(0, 2), cut=st.integers(1, 40), tail=tokens, count=st.integers(0, 12), client=picks,
        n=st.sampled_from([1, 1, 1, 3]), keep=st.booleans(), warm=st.booleans(), priority=st.sampled_from([0, 0, 0, 1]),
        tenant=st.sampled_from(["", "", "t"]),
        stops=st.sampled_from([(), (), tuple(range(12))]),
        scored=st.sampled_from([-1, -1, 0, 3]), logprobs=st.sampled_from([-1, 2]),
    )  # fmt: skip
    def submit(
        self, prefix: int, cut: int, tail: list[int], count: int, client: int, n: int, keep: bool, warm: bool,
        priority: int, tenant: str, stops: tuple[int, ...], scored: int, logprobs: int,
    ) -> None:  # fmt: skip
        self.world.submit(
            PREFIXES[prefix][:cut] + tail,
            count,
            client=CLIENTS[client % 2],
            n=n,
            keep=keep,
            temperature=0.8 if warm else 0.0,
            key=client,
            priority=priority,
            tenant=tenant,
            stops=Stops(ids=stops),
            logits_from=scored,
            logprobs=logprobs,
        )

    @rule(
        seed=picks, length=st.integers(20, 40), count=st.integers(2, 4), steps=st.integers(0, 2), leaves=st.booleans()
    )
    def crowd(self, seed: int, length: int, count: int, steps: int, leaves: bool) -> None:
        """Several requests with one new prefix, at once; one of them may change its mind while they wait for it."""
        prefix = [(seed + i * i) % 50 for i in range(length)]
        crowd = [self.world.submit([*prefix, i], 3, client=b"a") for i in range(count)]
        for _ in range(steps):
            self.world.step()
        if leaves:
            self._cancel(b"a", crowd[seed % count])

    @precondition(lambda self: bool(self.world.truths))
    @rule(which=picks, cut=picks, tail=tokens, count=st.integers(1, 10), keep=st.booleans(), n=st.sampled_from([1, 2]))
    def fork(self, which: int, cut: int, tail: list[int], count: int, keep: bool, n: int) -> None:
        keys = [key for key in self.world.truths if key[:2] in self.world.accepted][-KNOWN_OPEN:]
        if not keys:
            return
        key = keys[which % len(keys)]
        branch = self.world.scheduler._books.find(*key)
        at = cut % (len(self.world.truths[key].ids) + 1)
        tenant = branch.request.namespace.tenant if branch is not None else ""
        self.world.submit(
            tail, count, client=key[0], parent=((key[1], key[2]), at), keep=keep, n=n, tenant=tenant, temperature=0.5
        )

    @rule(prefix=st.integers(0, 2), cut=st.integers(1, 30), continuations=st.lists(tokens, min_size=1, max_size=3))
    def score(self, prefix: int, cut: int, continuations: list[list[int]]) -> None:
        self.world.score(PREFIXES[prefix][:cut], continuations, client=b"a")

    @precondition(lambda self: bool(self.world.accepted))
    @rule(which=picks)
    def cancel(self, which: int) -> None:
        open_now = list(self.world.scheduler._books.requests)
        if open_now:
            self._cancel(*open_now[which % len(open_now)])

    def _cancel(self, client: bytes, request: int) -> None:
        found = self.world.scheduler._books.requests.get((client, request))
        if found is None:
            return
        choices = [0] if found.is_score else [branch.choice for branch in found.branches]
        self.world.cancel(request, client)
        for choice in choices:
            assert self.world.of(request, choice, client).terminal, "a cancel takes effect at once"

    @precondition(lambda self: bool(self.world.truths))
    @rule(which=picks)
    def release(self, which: int) -> None:
        kept = [key for key, branch in self.world.scheduler._books.branches.items() if branch.kept]
        if kept:
            client, request, choice = kept[which % len(kept)]
            self.world.release(request, choice, client)

    # ------------------------------------------------------------ time and trouble

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    @rule()
    def schedule(self) -> None:
        if len(self.world._sent) < self.world.config.plan_depth:
            self.world.schedule()

    @rule(kind=st.sampled_from([*["push_back", "evict", "flush"] * 4, *TROUBLE]), which=picks)
    def trouble(self, kind: str, which: int) -> None:
        world, books = self.world, self.world.scheduler._books
        if kind == "push_back" and books.running:
            rows = list(books.running.values())
            world.scheduler._life.push_back(rows[which % len(rows)])
        elif kind == "evict":
            assert books.memory is not None
            books.memory.tree.evict(which % 8 + 1)
        elif kind == "flush":
            world.control("flush")
        elif kind == "kill_worker":
            world.kill_worker()
        elif kind == "fail_step":
            world.fail_step()
        elif kind == "kill_scheduler":
            world.kill_scheduler()
        elif kind == "kill_frontend":
            world.take(world.scheduler.forget_client(CLIENTS[which % 2], world.now))

    # ------------------------------------------------------------ what always holds

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.scheduler.check()
        self.world.check_in_flight()
        memory = self.world.scheduler._books.memory
        assert memory is not None
        pool, tree = memory.pool, memory.tree
        assert pool.free_count + pool.private_count + tree.evictable_count + tree.locked_count == pool.total
        for branch in self.world.scheduler._books.branches.values():
            if branch.state in (State.QUEUED, State.WAITING):
                assert branch.row is None, "a branch that waits holds nothing"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.run()
        for key in list(world.scheduler._books.branches):
            world.release(key[1], key[2], key[0])
        world.check_all_ended()
        world.scheduler.check()
        memory = world.scheduler._books.memory
        assert memory is not None
        assert memory.pool.private_count == memory.tree.locked_count == memory.tree.lease_count == 0
        world.control("flush")
        assert memory.pool.free_count == memory.pool.total


def play(seed: int, operations: int) -> None:
    """The same operations from plain dice, with little room and everything switched on: where most of the machinery
    is at work, so that a fault shows soon."""
    dice = random.Random(seed)
    chaos = Chaos()
    chaos.start(dice.choice([2, 4]), 128, dice.choice([5, 9]), 6, dice.choice([1, 2]), "lru", Switches())
    ids = lambda: [dice.randrange(7) for _ in range(dice.randrange(1, 7))]  # noqa: E731
    pick = lambda: dice.randrange(1 << 16)  # noqa: E731
    moves: list[tuple[int, Callable[[], None]]] = [
        (3, lambda: chaos.submit(
            dice.randrange(3), dice.randrange(1, 41), ids(), dice.randrange(13), pick(), dice.choice([1, 1, 3]),
            dice.random() < 0.3, dice.random() < 0.5, dice.choice([0, 0, 1]), dice.choice(["", "", "t"]),
            dice.choice([(), (), tuple(range(12))]), dice.choice([-1, -1, 0, 3]), dice.choice([-1, 2]),
        )),
        (3, lambda: chaos.crowd(
            pick(), dice.randrange(20, 41), dice.randrange(2, 5), dice.randrange(3), dice.random() < 0.5
        )),
        (3, lambda: chaos.fork(pick(), pick(), ids(), dice.randrange(1, 11), dice.random() < 0.3, dice.choice([1, 2]))),
        (1, lambda: chaos.score(
            dice.randrange(3), dice.randrange(1, 31), [ids() for _ in range(dice.randrange(1, 4))]
        )),
        (1, lambda: chaos.cancel(pick())),
        (2, lambda: chaos.release(pick())),
        (6, lambda: chaos.step(dice.randrange(1, 7))),
        (3, chaos.schedule),
        (3, lambda: chaos.trouble(dice.choice(["push_back", "evict"]), pick())),
        (1, lambda: chaos.trouble(dice.choice(TROUBLE), pick())),
    ]  # fmt: skip
    weights, calls = zip(*moves, strict=True)
    for _ in range(operations):
        dice.choices(calls, weights)[0]()
        chaos.every_block_is_in_one_state()
    chaos.teardown()


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Chaos,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("seed", range(4))
def test_dice_find_nothing(seed: int) -> None:
    play(seed, 250)


@pytest.mark.parametrize("part", range(10))
def test_ten_thousand_operations_in_any_order(part: int) -> None:
    run(examples=20, steps=50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_thousand_operations_in_any_order() -> None:
    run(examples=2000, steps=100)
