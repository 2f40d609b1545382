"""Invariant 1 on the real model: the same ids and log-probabilities, as bytes, whatever stands around a request.

Each request is first run alone on an empty cache. Then all of them run together under other circumstances: batched,
cached, in other chunks, pushed back, grouped or not, on one thread or two.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from oracle_world import World
from ramet.kernels.select import has_cpu_kernels
from ramet.runtime import constrain, store
from ramet.runtime.protocol.config import SchedulerConfig, Switches, WorkerConfig
from ramet.runtime.protocol.ids import pack_ids
from ramet.runtime.protocol.messages import Constraint, ConstraintSpec, Limits, Sampling, Stops, Submit
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.worker.core import WorkerCore

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not has_cpu_kernels(), reason="bit-exactness is promised for the C++ kernels"),
]

BLOCK = 16
POOL = 2048  # blocks
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 24}, "kind": {"enum": ["licence", "manual", "other"]}},
    "required": ["title", "kind"],
    "additionalProperties": False,
}
SPECS = {
    "schema": ConstraintSpec("json_schema", json.dumps(SCHEMA)),
    "regex": ConstraintSpec("regex", r"(yes|no), [a-z ]{5,30}\."),
}
TEXT = (
    "Permission is granted to copy, distribute and modify this document. A reader who finds a fault in section {n} "
    "may report it to the editors, who answer within {n} days. The streams of part {n} are read in order; each one "
    "ends before the next begins, and a chunk that arrives twice is dropped. "
)


@dataclass(frozen=True)
class Case:
    ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    logprobs: int
    constraint: str = ""
    n: int = 1


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    logprobs: bytes = b""
    reason: str = ""


@dataclass(frozen=True)
class Device:
    """The model, loaded once; workers on it differ in their cores only."""

    tokenizer: Tokenizer
    make_runner: Callable[[int], Any]

    def worker(self, threads: int = 2) -> Callable[[], WorkerCore]:
        compile_spec = functools.partial(constrain.compile, tokenizer=self.tokenizer)
        return lambda: WorkerCore(self.make_runner(threads), compile_spec)


@pytest.fixture(scope="module")
def device(model_dir: Path) -> Device:
    from ramet.kernels import select
    from ramet.runtime.worker.model_runner import ModelRunner
    from ramet.runtime.worker.models import load_model

    folder = store.open(model_dir)
    tokenizer = Tokenizer.load(folder)

    @functools.cache
    def make_runner(threads: int) -> ModelRunner:
        ops = select(WorkerConfig(kernels="cpu", threads=threads))
        model = load_model(folder, ops)
        return ModelRunner(folder, ops, model, tokenizer.token_table, kv_tokens=POOL * BLOCK, block_size=BLOCK)

    return Device(tokenizer, make_runner)


def make_cases(tokenizer: Tokenizer, count: int = 50) -> list[Case]:
    """Greedy, seeded and constrained requests; some share a prefix of theirs at every offset within a block."""
    rng = random.Random(7)
    ids = tokenizer.encode("".join(TEXT.format(n=n) for n in range(3, 60)))
    assert len(ids) > 1600
    cases = []
    for i in range(count):
        cut = 20 + i if i < 20 else rng.choice([33, 64, 65, 129, 200, 333, 512, 700])
        if i == count - 1:
            cut = 1500
        tail = tokenizer.encode(f" Note {i}: in short,") if i % 3 else []
        kind = i % 3
        sampling = Sampling(0.0) if kind == 0 else Sampling(0.9, top_p=0.95, top_k=(40 if i % 2 else -1), key=1000 + i)
        constraint = ("schema", "regex")[i % 2] if kind == 2 else ""
        logprobs = (-1, 0, 3)[(i // 3) % 3]
        cases.append(Case((*ids[:cut], *tail), sampling, 40 if constraint else 20, logprobs, constraint))
    return cases


def submit(world: World, case: Case, id: int) -> None:
    if case.constraint:
        world.scheduler.constraint(Constraint(case.constraint, SPECS[case.constraint]))
    message = Submit(
        id,
        pack_ids(case.ids),
        len(case.ids),
        case.sampling,
        Limits(case.max_tokens),
        Stops(strings=(b"chunk that",)),
        logprobs=case.logprobs,
        constraint_key=case.constraint,
    )
    world.take(world.scheduler.submit(b"client", message, world.now))


def answer(world: World, id: int) -> Answer:
    heard = world.of(id)
    return Answer(heard.ids, repr(heard.logprobs).encode(), heard.finished.reason)


def run_together(world: World, cases: list[Case], rounds: int = 1) -> list[list[Answer]]:
    answers = []
    for turn in range(rounds):
        for i, case in enumerate(cases):
            submit(world, case, 1000 * (turn + 1) + i)
        world.run(200_000)
        answers.append([answer(world, 1000 * (turn + 1) + i) for i in range(len(cases))])
    return answers


def config(**fields: Any) -> SchedulerConfig:
    settings: dict[str, Any] = {"block_size": BLOCK, "chunk_tokens": 512, "max_rows": 16, "check_invariants": True}
    return SchedulerConfig(**(settings | fields))


def compare(got: list[Answer], expected: list[Answer]) -> None:
    wrong = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
    assert not wrong, [(i, got[i].ids, expected[i].ids, got[i].reason, expected[i].reason) for i in wrong[:3]]


@pytest.fixture(scope="module")
def cases(device: Device) -> list[Case]:
    return make_cases(device.tokenizer)


@pytest.fixture(scope="module")
def alone(device: Device, cases: list[Case]) -> list[Answer]:
    """Each request alone, on an empty cache, in one chunk."""
    world = World(blocks=POOL, config=config(), make_worker=device.worker())
    answers = []
    for i, case in enumerate(cases):
        world.control("flush")
        submit(world, case, 1000 + i)
        world.run()
        assert world.of(1000 + i).cached == 0
        answers.append(answer(world, 1000 + i))
    assert len({tuple(a.ids) for a in answers}) > 30, "the cases are too much alike to tell anything"
    assert {a.reason for a in answers} >= {"length", "end"}
    return answers


def test_batched_then_cached(device: Device, cases: list[Case], alone: list[Answer]) -> None:
    world = World(blocks=POOL, config=config(), make_worker=device.worker())
    cold, warm = run_together(world, cases, rounds=2)
    compare(cold, alone)
    compare(warm, alone)
    assert all(world.of(2000 + i).cached > 0 for i in range(len(cases)) if len(cases[i].ids) > BLOCK)


@pytest.mark.parametrize("chunk", [7, 64])
def test_chunk_sizes(device: Device, cases: list[Case], alone: list[Answer], chunk: int) -> None:
    world = World(blocks=POOL, config=config(chunk_tokens=chunk), make_worker=device.worker())
    compare(run_together(world, cases)[0], alone)


def test_one_token_at_a_time(device: Device, cases: list[Case], alone: list[Answer]) -> None:
    short = [i for i, case in enumerate(cases) if len(case.ids) < 80]
    world = World(blocks=POOL, config=config(chunk_tokens=1), make_worker=device.worker())
    compare(run_together(world, [cases[i] for i in short])[0], [alone[i] for i in short])


@pytest.mark.parametrize("every", [3, 11])
def test_pushed_back(device: Device, cases: list[Case], alone: list[Answer], every: int) -> None:
    world = World(blocks=POOL, config=config(switches=Switches(preempt_every=every)), make_worker=device.worker())
    compare(run_together(world, cases)[0], alone)
    assert world.stats()["preemptions"] >= 5


def test_small_pool(device: Device, cases: list[Case], alone: list[Answer]) -> None:
    world = World(blocks=104, config=config(), make_worker=device.worker())
    compare(run_together(world, cases)[0], alone)


@pytest.mark.parametrize(
    "switches",
    [Switches(grouping=False), Switches(force_miss=True), Switches(tree=False), Switches(pending=False)],
    ids=["ungrouped", "forced miss", "no tree", "no pending"],
)
def test_switches(device: Device, cases: list[Case], alone: list[Answer], switches: Switches) -> None:
    world = World(blocks=POOL, config=config(switches=switches), make_worker=device.worker())
    compare(run_together(world, cases, rounds=2)[1], alone)


def test_one_thread(device: Device, cases: list[Case], alone: list[Answer]) -> None:
    world = World(blocks=POOL, config=config(), make_worker=device.worker(threads=1))
    compare(run_together(world, cases)[0], alone)


def test_queued_plans(device: Device, cases: list[Case], alone: list[Answer]) -> None:
    world = World(blocks=POOL, config=config(plan_depth=2), make_worker=device.worker())
    compare(run_together(world, cases, rounds=2)[1], alone)


def test_a_dead_worker(device: Device, cases: list[Case], alone: list[Answer]) -> None:
    world = World(blocks=POOL, config=config(), make_worker=device.worker())
    for i, case in enumerate(cases):
        submit(world, case, 1000 + i)
    for steps in (3, 9, 20):
        for _ in range(steps):
            world.step()
        world.kill_worker()
    world.run(200_000)
    compare([answer(world, 1000 + i) for i in range(len(cases))], alone)
