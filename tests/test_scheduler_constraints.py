"""Constraints on their way to the worker: known while they are used, bounded otherwise, sent when they are needed."""

from __future__ import annotations

from oracle_world import World
from ramet.runtime.protocol.messages import Constraint, ConstraintSpec
from ramet.runtime.scheduler.constraints import SENT_KEYS, Constraints
from ramet.runtime.worker import constraints as worker_side


def spec(text: str) -> ConstraintSpec:
    return ConstraintSpec("regex", text)


def test_a_constraint_goes_to_each_worker_once() -> None:
    known = Constraints()
    known.put("a", spec("x"))
    assert known.to_send("a") == Constraint("a", spec("x"))
    assert known.to_send("a") is None
    known.new_worker()
    assert known.to_send("a") is not None
    known.put("a", spec("other"))
    assert known.to_send("a") == Constraint("a", spec("other"))


def test_ten_thousand_specifications_take_bounded_memory() -> None:
    known = Constraints(kept_bytes=100_000)
    known.put("used", spec("u" * 5_000))
    known.enter("used")
    for i in range(10_000):
        known.put(f"key {i}", spec("x" * 1_000))
        known.to_send(f"key {i}")
    assert len(known._specs) < 100 and "used" in known and "key 9999" in known
    known.leave("used")
    for i in range(200):
        known.put(f"more {i}", spec("x" * 1_000))
    assert "used" not in known


def test_what_counts_as_sent_is_still_at_the_worker() -> None:
    known = Constraints()
    cache = worker_side.ConstraintCache(None, 1 << 20)
    assert worker_side.KEPT_KEYS >= 2 * SENT_KEYS
    for i in range(3 * worker_side.KEPT_KEYS):
        key = f"key {i}"
        known.put(key, spec("x" * (i % 7)))
        constraint = known.to_send(key)
        assert constraint is not None
        cache.add(constraint.key, constraint.spec)
    assert len(cache._specs) <= worker_side.KEPT_KEYS
    assert set(known._sent) <= set(cache._specs)


def test_a_submit_with_an_unknown_constraint_is_refused_by_name() -> None:
    world = World()
    request = world.submit([1, 2, 3], constraint_key="nobody")
    refusal = world.rejected[b"client", request]
    assert refusal.code == "unknown_constraint" and "'nobody'" in refusal.message


def test_a_constraint_that_fails_at_the_worker_ends_its_rows_alone() -> None:
    from ramet.runtime.protocol.messages import ConstraintFailed

    world = World()
    world.expected_errors = ("constraint unsupported",)
    world.scheduler.constraint(Constraint("k", spec("x")))
    failing = world.submit([1, 2, 3], 5, constraint_key="k")
    other = world.submit([4, 5, 6], 5)
    world.take(world.scheduler.apply(ConstraintFailed("k", "unsupported", "no such thing"), world.now))
    world.run()
    assert world.of(failing).finished.reason == "error" and "no such thing" in world.of(failing).finished.message
    assert world.of(other).ids == world.greedy([4, 5, 6], 5)
