"""Caching never changes an answer: the same requests under every setting say the same ids and log-probabilities."""

from __future__ import annotations

import random
from typing import Any

import pytest
from oracle_world import World
from ramet.runtime.protocol.config import SchedulerConfig, Switches
from ramet.runtime.protocol.messages import Stops

BASE: dict[str, Any] = {"block_size": 16, "chunk_tokens": 64, "max_rows": 8, "plan_depth": 1, "check_invariants": True}

SETTINGS: dict[str, dict[str, Any]] = {
    **{f"blocks of {size}": {"block_size": size} for size in (1, 2, 16, 64)},
    **{f"chunks of {size}": {"chunk_tokens": size} for size in (1, 7, 512)},
    **{f"policy {policy}": {"policy": policy} for policy in ("lfu", "slru", "priority")},
    **{f"{depth} plans queued": {"plan_depth": depth} for depth in (2, 3)},
    **{f"{rows} rows": {"max_rows": rows} for rows in (1, 3)},
    "no tree": {"switches": Switches(tree=False)},
    "forced miss": {"switches": Switches(force_miss=True)},
    "no pending": {"switches": Switches(pending=False)},
    "first come": {"switches": Switches(order="fcfs")},
    "random order": {"switches": Switches(order="random")},
    "pushed back at every third step": {"switches": Switches(preempt_every=3)},
    "pushed back, queued plans": {"switches": Switches(preempt_every=2), "plan_depth": 2},
    "nearly no memory": {"pool": 160},
    "nearly no memory, queued plans": {"pool": 160, "plan_depth": 2, "block_size": 4},
}


def play(pool: int = 4096, **changes: Any) -> list[Any]:
    """What every client hears of forty mixed requests, forks, choices and scores."""
    config = SchedulerConfig(**(BASE | changes))
    world = World(blocks=max(pool // config.block_size, 2), config=config)
    dice = random.Random(7)
    shared = [dice.randrange(60) for _ in range(50)]
    requests: list[tuple[int, int]] = []
    for i in range(30):
        ids = shared[: dice.randrange(51)] + [dice.randrange(60) for _ in range(dice.randrange(1, 30))]
        n = dice.choice([1, 1, 3])
        request = world.submit(
            ids,
            dice.randrange(1, 20),
            n=n,
            temperature=dice.choice([0.0, 0.9]),
            key=i,
            logprobs=dice.choice([-1, 0, 2]),
            logits_from=dice.choice([-1, -1, len(ids) // 2]),
            stops=Stops(ids=dice.choice([(), (3, 5, 7)])),
            tenant=dice.choice(["", "t"]),
            keep=i % 5 == 0,
        )
        requests.append((request, n))
        if dice.random() < 0.5:
            world.step()
    scores = [world.score(shared[:k], [[1, 2], [3], [4, 5, 6]]) for k in (1, 20, 47)]
    world.run()
    for request, n in requests[::5]:
        tenant = world.tenants[b"client", request]
        at = len(world.truths[b"client", request, 0].ids) - 1
        child = world.submit([9, 9, 8], 6, parent=((request, 0), at), tenant=tenant, n=n)
        requests.append((child, n))
    world.run()
    heard = [world.of(request, choice) for request, n in requests for choice in range(n)]
    said = [(h.ids, h.logprobs, h.prompt_logprobs, h.finished.reason, h.finished.stop) for h in heard]
    return [*said, *(world.scored[b"client", score].logprobs for score in scores)]


@pytest.fixture(scope="module")
def plain() -> list[Any]:
    return play()


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_changes_an_answer(name: str, plain: list[Any]) -> None:
    assert play(**SETTINGS[name]) == plain


def test_rows_that_outgrow_what_was_expected_are_pushed_back_and_say_the_same() -> None:
    """Forty short answers teach the admission to expect short ones; then come long ones."""
    world = World(blocks=24, config=SchedulerConfig(**BASE | {"block_size": 4}))
    for i in range(40):
        world.submit([i, 1], 60, stops=Stops(ids=tuple(range(20))))
    world.run()
    long = [world.submit([i, *range(11)], 60) for i in range(6)]
    world.run()
    assert world.stats()["preemptions"] >= 3
    for i, request in enumerate(long):
        assert world.of(request).ids == world.greedy([i, *range(11)], 60)
