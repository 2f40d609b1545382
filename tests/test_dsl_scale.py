"""Many programs at once: what they cost in threads, memory and locked blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from dsl_oracle import oracle_engine
from ramet.frontend_lang.fake import FakeBackend

import ramet as rt

CHILD = Path(__file__).with_name("dsl_scale_child.py")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "compiled"])
def test_ten_thousand_programs_at_once(kind: str) -> None:
    where = os.pathsep.join([str(Path(rt.__file__).parents[1]), str(CHILD.parent)])
    command = [sys.executable, str(CHILD), kind, "10000"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": where}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    cost: dict[str, float] = json.loads(done.stdout)
    assert cost["open"] == 10_000 and cost["threads"] <= 16 and cost["kept"] == 0
    assert cost["memory"] < 200, f"{cost['memory']:.0f} MB above import"


def test_bodies_that_block_run_side_by_side() -> None:
    fake = FakeBackend()
    inside: list[str] = []
    together = threading.Barrier(64, timeout=60)

    @rt.function
    def program(s: rt.State, topic: str) -> None:
        s += topic
        together.wait()  # goes on when all 64 are here
        inside.append(topic)
        s += rt.gen("x", max_tokens=2)

    states = list(program.run_batch([(f"t{i}",) for i in range(64)], num_threads=64, backend=fake))
    assert [state.error() for state in states] == [None] * 64 and len(inside) == 64
    fake.close()


@pytest.mark.slow
def test_sleeping_bodies_take_no_longer_than_one() -> None:
    fake = FakeBackend()

    @rt.function
    def program(s: rt.State, topic: str) -> None:
        time.sleep(1)
        s += topic + rt.gen("x", max_tokens=2)

    begin = time.monotonic()
    states = list(program.run_batch([(f"t{i}",) for i in range(64)], num_threads=64, backend=fake))
    assert all(state.error() is None for state in states)
    assert time.monotonic() - begin < 30, "one after the other they would take 64 s"
    fake.close()


def blocks(engine: rt.Engine) -> dict[str, int]:
    """Once the last step has let go of them."""
    end = time.monotonic() + 10
    while True:
        found: Any = engine.stats()["blocks"]
        if not found["locked"] + found["private"] or time.monotonic() > end:
            return dict(found)
        time.sleep(0.02)


def hold(engine: rt.Engine, count: int) -> None:
    @rt.function
    def program(s: rt.State, topic: str) -> None:
        s += f"Shared beginning of some length. {topic}" + rt.gen("x", max_tokens=1)

    states = list(program.run_batch([(f"t{i}",) for i in range(count)], backend=engine))
    assert all(state.error() is None for state in states)
    found = blocks(engine)
    assert found["locked"] == found["private"] == 0
    assert len({id(state) for state in states}) == count, "all of them are still held"


def test_finished_states_lock_nothing(tmp_path: Path) -> None:
    with oracle_engine(tmp_path) as engine:
        hold(engine, 300)

        @rt.function
        def wide(s: rt.State) -> None:
            s += "root" + rt.gen("a", max_tokens=2)
            forks = s.fork(1000)
            forks += [f"{i}" + rt.gen("v", max_tokens=1) for i in range(1000)]
            forks.join()

        state = wide.run(backend=engine)
        assert len(state["v"]) == 1000 and state.error() is None
        found = blocks(engine)
        assert found["locked"] == found["private"] == 0


@pytest.mark.slow
def test_ten_thousand_finished_states_lock_nothing(tmp_path: Path) -> None:
    with oracle_engine(tmp_path, check_invariants=False) as engine:
        hold(engine, 10_000)
