"""Constrained branches at the end of the pool: spare room for forced ids is a convenience, never a demand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from oracle_world import World
from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.protocol.messages import Constraint, ConstraintSpec
from ramet.runtime.worker.core import WorkerCore
from ramet.runtime.worker.oracle import OracleRunner

BLOCKS, SIZE, VOCAB = 8, 4, 64
POOL = BLOCKS * SIZE


class AnyText:
    """A constraint that allows every id and forces none: it changes no ids."""

    lane = "test"
    size = 1
    can_end = True
    finished = False

    def matcher(self) -> AnyText:
        return self

    fork = matcher

    def advance(self, ids: Sequence[int]) -> bool:
        return True

    def forced(self) -> list[int]:
        return []

    def fill_mask(self, row: NDArray[np.uint32]) -> None:
        row.fill(0xFFFFFFFF)

    def rollback(self, count: int) -> None:
        pass


def world(plan_depth: int) -> World:
    made = World(
        blocks=BLOCKS,
        vocab=VOCAB,
        config=SchedulerConfig(block_size=SIZE, chunk_tokens=16, max_rows=4, plan_depth=plan_depth, spare_forced=8),
        make_worker=lambda: WorkerCore(OracleRunner(BLOCKS, SIZE, VOCAB), lambda _: AnyText()),
    )
    made.scheduler.constraint(Constraint("any", ConstraintSpec("regex", ".*")))
    return made


@pytest.mark.parametrize("plan_depth", [1, 2, 3])
@pytest.mark.parametrize("n_prompt", [1, 15, 16, 20, 23, 24, 25, 27, 28, 29, 31, 32])
def test_a_constrained_branch_reaches_the_same_length(plan_depth: int, n_prompt: int) -> None:
    said = []
    for key in ("", "any"):
        here = world(plan_depth)
        request = here.submit([i % 50 for i in range(n_prompt)], 100, constraint_key=key)
        here.run()
        assert here.of(request).finished.reason == "length"
        said.append(here.of(request).ids)
    assert said[0] == said[1] and len(said[1]) == POOL + 1 - n_prompt


@pytest.mark.parametrize("plan_depth", [1, 2, 3])
def test_several_constrained_branches_reach_the_end_of_the_pool(plan_depth: int) -> None:
    here = world(plan_depth)
    prompts = [[i, i + 1, i + 2, *range(17)] for i in range(4)]
    requests = [here.submit(ids, 100, constraint_key="any") for ids in prompts]
    here.run()
    for ids, request in zip(prompts, requests, strict=True):
        assert here.of(request).ids == here.greedy(ids, POOL + 1 - len(ids))
