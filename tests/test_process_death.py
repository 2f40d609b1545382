"""Processes die under load, and no stream notices: every one ends as it does undisturbed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from ramet.runtime.frontend.client import ChoiceResult, Client, GenerateRequest, Generation
from ramet.runtime.launch import Launcher
from ramet.runtime.launch.child import child_environment
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig, WorkerConfig
from ramet.runtime.protocol.pulse import BUSY, pulse_path, read_pulse

STREAMS = 16
TOKENS = 260
KILLS = 10
VOCAB = 1000


@dataclass(frozen=True)
class OracleTable:
    """The client's view of the oracle's vocabulary."""

    vocab_size: int = VOCAB

    @property
    def token_table(self) -> list[bytes]:
        return [b"<%d>" % token for token in range(self.vocab_size)]


def config(step_s: float = 0.01, *, plan_depth: int = 1, kv_tokens: int = 16_384) -> RuntimeConfig:
    return RuntimeConfig(
        model="",
        run_dir="",
        scheduler=SchedulerConfig(check_invariants=True, plan_depth=plan_depth, context=4096),
        worker=WorkerConfig(kernels="oracle", oracle_vocab=VOCAB, oracle_step_s=step_s, kv_tokens=kv_tokens),
    )


def requests() -> list[GenerateRequest]:
    """Greedy and sampled, with shared and own prefixes, with and without log-probabilities."""
    choose = random.Random(7)
    common = [choose.randrange(3, VOCAB) for _ in range(100)]
    made = []
    for stream in range(STREAMS):
        own = [choose.randrange(3, VOCAB) for _ in range(choose.randrange(1, 60))]
        made.append(
            GenerateRequest(
                ids=common + own if stream % 2 else own,
                temperature=0.0 if stream % 3 == 0 else 1.0,
                seed=stream,
                max_tokens=TOKENS,
                ignore_eos=True,
                logprobs=1 if stream % 4 == 0 else -1,
            )
        )
    return made


class Load:
    """All streams at once, and how far they are."""

    def __init__(self, client: Client, wanted: list[GenerateRequest]) -> None:
        self._streams: list[Generation] = [client.generate(request) for request in wanted]
        self.seen = [0] * len(wanted)

    async def consume(self) -> list[ChoiceResult]:
        return list(await asyncio.gather(*(self._one(i) for i in range(len(self._streams)))))

    async def _one(self, index: int) -> ChoiceResult:
        ids: list[int] = []
        async for chunk in self._streams[index]:
            assert chunk.offset == self._prompt(index) + len(ids), "no id twice, none left out"
            ids += chunk.ids
            self.seen[index] = len(ids)
        (result,) = await self._streams[index].result()
        assert result.ids == ids
        return result

    def _prompt(self, index: int) -> int:
        return len(requests()[index].ids)


Disturb = Callable[[Launcher, Load], Awaitable[None]]


async def run(launcher: Launcher, disturb: Disturb | None = None) -> list[ChoiceResult]:
    client = Client(launcher.config.frontend_endpoint, OracleTable())
    await client.start()
    try:
        load = Load(client, requests())
        consuming = asyncio.create_task(load.consume())
        if disturb is not None:
            await disturb(launcher, load)
        return await asyncio.wait_for(consuming, 120)
    finally:
        await client.close()


def essence(results: list[ChoiceResult]) -> list[object]:
    return [
        (r.ids, r.finish_reason, r.text, None if r.logprobs is None else [(e.raw, e.top) for e in r.logprobs])
        for r in results
    ]


@pytest.fixture(scope="module")
def undisturbed() -> list[object]:
    with Launcher(config(0.0)) as launcher:
        results = asyncio.run(run(launcher))
    assert [r.finish_reason for r in results] == ["length"] * STREAMS
    return essence(results)


def killer(roles: list[str]) -> Disturb:
    """Kill -9 each time another twelfth of all ids has come, so that every kill meets all streams at work."""

    async def disturb(launcher: Launcher, load: Load) -> None:
        for kill in range(KILLS):
            while sum(load.seen) < (kill + 1) * STREAMS * TOKENS // (KILLS + 2) or launcher.status().state != "ready":
                await asyncio.sleep(0.01)
            assert all(seen < TOKENS for seen in load.seen), "a stream ended before its kills"
            child = next(c for c in launcher.status().children if c.role == roles[kill % len(roles)])
            os.kill(child.pid, signal.SIGKILL)
            while any(c.pid == child.pid for c in launcher.status().children):
                await asyncio.sleep(0.01)

    return disturb


@pytest.mark.slow
@pytest.mark.parametrize(
    ("roles", "plan_depth"), [(["scheduler"], 1), (["worker"], 1), (["scheduler", "worker"], 2)], ids=str
)
def test_ten_kills_under_sixteen_streams(undisturbed: list[object], roles: list[str], plan_depth: int) -> None:
    with Launcher(config(plan_depth=plan_depth)) as launcher:
        results = asyncio.run(run(launcher, killer(roles)))
        restarts = {child.role: child.restarts for child in launcher.status().children}
    assert sum(restarts.values()) == KILLS
    assert essence(results) == undisturbed


@pytest.mark.slow
def test_a_hung_worker_is_replaced_and_no_stream_notices(undisturbed: list[object]) -> None:
    async def disturb(launcher: Launcher, load: Load) -> None:
        while sum(load.seen) < STREAMS * TOKENS // 4:
            await asyncio.sleep(0.01)
        child = next(c for c in launcher.status().children if c.role == "worker")
        while True:  # stopped in the middle of a step
            os.kill(child.pid, signal.SIGSTOP)
            await asyncio.sleep(0.3)
            pulse = read_pulse(pulse_path(launcher.config.run_dir, "worker"))
            if pulse is not None and pulse.phase == BUSY:
                return
            os.kill(child.pid, signal.SIGCONT)
            await asyncio.sleep(0.005)

    with Launcher(config(0.01)) as launcher:
        results = asyncio.run(run(launcher, disturb))
        status = next(c for c in launcher.status().children if c.role == "worker")
    assert status.restarts == 1 and "no progress" in status.last_exit
    assert essence(results) == undisturbed


PARENT = """
import asyncio, sys
sys.path.insert(0, {tests!r})
import test_process_death as t
from ramet.runtime.launch import Launcher

async def disturb(launcher, load):
    while not all(load.seen):
        await asyncio.sleep(0.01)
    print(*[c.pid for c in launcher.status().children], flush=True)
    await asyncio.sleep(60)

with Launcher(t.config(0.05)) as launcher:
    asyncio.run(t.run(launcher, disturb))
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill-9"])
def test_no_child_outlives_its_parent_and_a_second_start_works(tmp_path: Path, signal_number: int) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(tests=str(Path(__file__).parent)))
    environment = child_environment(os.environ.get("PYTHONPATH", ""))
    for _ in range(2):
        parent = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 2 and all(map(runs, children))
        parent.send_signal(signal_number)
        parent.wait(5)
        deadline = time.monotonic() + 5
        while any(map(runs, children)):
            assert time.monotonic() < deadline, "a child outlived its parent"
            time.sleep(0.05)
