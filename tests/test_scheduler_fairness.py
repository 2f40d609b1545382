"""Who goes first: bounded overtaking, shares of tenants, priorities."""

from __future__ import annotations

import itertools

import pytest
from oracle_world import World
from ramet.runtime.protocol.config import SchedulerConfig, Switches
from ramet.runtime.scheduler.fairness import FairShare


def config(**changes: object) -> SchedulerConfig:
    base: dict[str, object] = {"block_size": 4, "chunk_tokens": 32, "max_rows": 2, "check_invariants": True}
    return SchedulerConfig(**(base | changes))  # type: ignore[arg-type]


def starts_before(world: World, request: int) -> int:
    """Other requests' rows that started before the first of ``request``'s."""
    ids = world.submitted[b"client", request].ids
    return next(i for i, start in enumerate(world.starts) if start.ids[: len(ids)] == ids)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_cold_request_is_passed_no_more_often_than_stated(depth: int) -> None:
    """A hot stream saturates the server; the cold request starts after ``max_overtakes`` others at most."""
    world = World(blocks=64, config=config(max_overtakes=8, plan_depth=depth))
    hot = list(range(24))
    world.submit([*hot, 40], 2)
    world.run()
    for i in range(6):
        world.submit([*hot, 41, i], 2)
    cold = world.submit([50] * 30, 2)
    before = len(world.starts)
    for i in range(60):
        world.submit([*hot, 42, i], 2)
        world.step()
    world.run()
    older = 6
    assert 8 <= starts_before(world, cold) - before <= 8 + older
    assert world.stats()["overtakes"] >= 8


def test_cached_requests_go_first_and_first_come_does_not() -> None:
    for order, expected in (("cache-aware", True), ("fcfs", False)):
        world = World(blocks=64, config=config(max_rows=1, switches=Switches(order=order)))  # type: ignore[arg-type]
        hot = list(range(24))
        world.submit([*hot, 40], 2)
        world.run()
        cold = world.submit([50] * 30, 2)
        warm = world.submit([*hot, 41], 2)
        world.run()
        assert (starts_before(world, warm) < starts_before(world, cold)) is expected


def test_branches_of_one_prefix_go_together() -> None:
    """Depth first: two families arrive interleaved and are served one after the other."""
    world = World(blocks=128, config=config(max_rows=1))
    families = {0: list(range(24)), 1: list(range(30, 54))}
    order = {world.submit([*families[i % 2], i], 2): i % 2 for i in range(10)}
    world.run()
    served = sorted(order, key=lambda request: starts_before(world, request))
    changes = sum(order[a] != order[b] for a, b in itertools.pairwise(served))
    assert changes == 1


def test_tenants_get_equal_shares_whatever_they_send() -> None:
    """One sends 100 times as much; while both have something queued, each computes half of the tokens."""
    world = World(blocks=512, config=config(max_rows=4, chunk_tokens=64))
    done: dict[str, int] = {"hog": 0, "modest": 0}
    hog = [world.submit([i % 50, i // 50, *range(10)], 12, tenant="hog") for i in range(1000)]
    modest = [world.submit([i % 50, i // 50, *range(20)], 12, tenant="modest") for i in range(30)]
    while any(not world.of(request).terminal for request in modest):
        world.step()
    done["modest"] = sum(22 + 12 for request in modest)
    done["hog"] = sum(12 + len(world.of(r).ids) for r in hog if world.of(r).ids)
    share = done["modest"] / (done["modest"] + done["hog"])
    assert 0.45 <= share <= 0.55
    assert sum(bool(world.of(request).terminal) for request in hog) < 120


def test_shares_follow_what_was_computed() -> None:
    shares = FairShare()
    served = {"a": 0, "b": 0, "c": 0}
    cost = {"a": 10, "b": 1000, "c": 333}
    for tenant in served:
        shares.enter(tenant)
    for _ in range(3000):
        tenant = shares.next(list(served))
        shares.charge(tenant, cost[tenant])
        served[tenant] += cost[tenant]
    total = sum(served.values())
    assert all(abs(tokens / total - 1 / 3) < 0.02 for tokens in served.values())


def test_who_was_away_has_saved_nothing() -> None:
    shares = FairShare()
    shares.enter("a")
    for _ in range(1000):
        shares.charge(shares.next(["a"]), 500)
    shares.enter("b")
    run = 0
    while shares.next(["a", "b"]) == "b":
        shares.charge("b", 500)
        run += 1
    assert run <= 3, "b is not paid for the time in which it asked for nothing"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_higher_priority_takes_the_place_of_a_lower(depth: int) -> None:
    world = World(blocks=64, config=config(max_rows=2, plan_depth=depth))
    low = [world.submit([i, *range(9)], 60) for i in range(2)]
    for _ in range(6):
        world.step()
    high = world.submit([7, *range(5)], 5, priority=1)
    while not world.of(high).terminal:
        world.step()
    assert not any(world.of(request).terminal for request in low)
    assert world.stats()["preemptions"] == 1
    world.run()
    for i, request in enumerate(low):
        assert world.of(request).ids == world.greedy([i, *range(9)], 60)


def test_a_higher_priority_takes_memory_too() -> None:
    world = World(blocks=16, config=config(max_rows=4))
    low = [world.submit([i, *range(9)], 20) for i in range(2)]
    for _ in range(8):
        world.step()
    high = world.submit(list(range(20, 50)), 5, priority=3)
    while not world.of(high).terminal:
        world.step()
    assert not all(world.of(request).terminal for request in low)
    world.run()
    for i, request in enumerate(low):
        assert world.of(request).ids == world.greedy([i, *range(9)], 20)


def test_an_owner_inherits_the_priority_of_who_waits_for_it() -> None:
    """The prefix that an urgent request waits for is computed before what is less urgent than that request."""
    world = World(blocks=128, config=config(max_rows=4, chunk_tokens=8))
    shared = list(range(40))
    owner = world.submit([*shared, 1], 4)
    world.step()
    waiter = world.submit([*shared, 2], 4, priority=5)
    less = world.submit([61, *range(30)], 4, priority=3)
    while not world.of(less).ids:
        assert world.step()
    assert world.of(waiter).ids
    world.run()
    for request in (owner, waiter, less):
        assert world.of(request).finished.reason == "length"


def test_preemption_spares_the_oldest() -> None:
    """However small the pool, the oldest request is never pushed back, so somebody always gets on."""
    world = World(blocks=14, vocab=64, config=config(max_rows=6))
    first = world.submit(list(range(8)), 40)
    for i in range(5):
        world.submit([i, *range(7)], 40)
    world.run()
    rows = [start for start in world.starts if start.ids[:32] == world.submitted[b"client", first].ids]
    assert len(rows) == 1


def test_debt_is_not_forgiven_for_an_empty_queue() -> None:
    """One tenant sends large requests one by one, the other keeps a backlog of small ones."""
    shares = FairShare()
    shares.enter("backlog")
    computed = {"backlog": 0, "single": 0}
    shares.enter("single")
    for _ in range(3000):
        turn = shares.next(("backlog", "single"))
        cost = 1000 if turn == "single" else 10
        computed[turn] += cost
        shares.charge(turn, cost)
        if turn == "single":
            shares.leave("single")
            shares.enter("single")
    assert abs(computed["single"] - computed["backlog"]) <= 1000 + 64
    shares.leave("backlog")
    shares.leave("single")
    assert not shares._debts and not shares._credit


def test_debts_that_are_remembered_are_bounded() -> None:
    shares = FairShare()
    shares.enter("here")
    for i in range(5000):
        shares.enter(str(i))
        shares.charge(str(i), 1 << 20)
        shares.leave(str(i))
    assert len(shares._debts) <= 1024
