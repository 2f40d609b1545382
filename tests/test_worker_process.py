"""The worker as a process: handshake, epochs, queued plans, heartbeats, and every way to end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from ramet.runtime.protocol.config import RuntimeConfig
from ramet.runtime.protocol.ids import unpack_ids
from ramet.runtime.protocol.messages import (
    Constraint,
    ConstraintFailed,
    ConstraintSpec,
    Drop,
    Heartbeat,
    Hello,
    PlanRow,
    Shutdown,
    StepPlan,
    StepResult,
    ToScheduler,
)
from ramet.runtime.protocol.pulse import BUSY, IDLE, pulse_path, read_pulse
from ramet.runtime.protocol.transport import FrameDecoder, bind_router, encode_frame
from worker_fakes import FakeRunner, Request, alone, spec

CHILD = Path(__file__).with_name("worker_child.py")


class FakeScheduler:
    """The other end of the worker's socket."""

    def __init__(self, config: RuntimeConfig, epoch: int) -> None:
        self.epoch = epoch
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = bind_router(self._context, config.worker_endpoint)
        self._decoder: FrameDecoder[Any] = FrameDecoder(ToScheduler)
        self.worker = b""

    def receive(self, timeout_s: float = 10.0) -> tuple[bytes, int, list[Any]]:
        assert self._socket.poll(timeout_s * 1000), "nothing came"
        sender, *parts = self._socket.recv_multipart()
        epoch, messages = self._decoder.decode(parts)
        return sender, epoch, messages

    def next(self, kind: type) -> Any:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            sender, epoch, messages = self.receive()
            for message in messages:
                if isinstance(message, kind):
                    if kind is Hello:
                        self.worker = sender
                    else:
                        assert epoch == self.epoch
                    return message
        raise AssertionError(f"no {kind.__name__}")

    def send(self, *messages: Any, epoch: int | None = None) -> None:
        frame = encode_frame(self.epoch if epoch is None else epoch, messages)
        self._socket.send_multipart([self.worker, *frame])

    def shake_hands(self) -> Hello:
        hello: Hello = self.next(Hello)
        self.send(Hello(version=1, role="scheduler", instance=1, epoch=self.epoch))
        return hello

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def config() -> Iterator[RuntimeConfig]:
    with tempfile.TemporaryDirectory(prefix="ramet-") as folder:
        yield RuntimeConfig(model="", run_dir=folder, parent_pid=os.getpid())


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def spawn(
    config: RuntimeConfig, children: list[subprocess.Popen[bytes]], step_s: float = 0.0
) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, str(CHILD), config.to_json(), str(step_s)])
    children.append(child)
    return child


def finish(scheduler: FakeScheduler, request: Request, row: int) -> list[int]:
    """Run the row with one plan at a time until it ends."""
    ids: list[int] = []
    scheduler.send(request.start(row))
    blocks: tuple[int, ...] = tuple(range(1, 20))
    for step in range(1, 100):
        scheduler.send(StepPlan(step, (PlanRow(row, 64, blocks),)))
        blocks = ()
        result: StepResult = scheduler.next(StepResult)
        assert result.step == step
        for entry in result.rows:
            ids += unpack_ids(entry.ids)
            if entry.end is not None:
                return ids
    raise AssertionError("the row does not end")


def test_a_row_over_the_wire_is_what_the_core_gives(
    config: RuntimeConfig, children: list[subprocess.Popen[bytes]]
) -> None:
    scheduler = FakeScheduler(config, epoch=7)
    spawn(config, children)
    hello = scheduler.shake_hands()
    assert (hello.role, hello.fingerprint, hello.blocks) == ("worker", "fake", FakeRunner.blocks)
    request = Request([3, 4, 5])
    assert finish(scheduler, request, 1) == alone(request).ids
    scheduler.send(Shutdown())
    assert children[0].wait(5) == 0
    scheduler.close()


def test_queued_plans_run_in_order_and_a_drop_waits_for_them(
    config: RuntimeConfig, children: list[subprocess.Popen[bytes]]
) -> None:
    scheduler = FakeScheduler(config, epoch=7)
    spawn(config, children, step_s=0.05)
    scheduler.shake_hands()
    request = Request([3, 4, 5], max_tokens=100)
    scheduler.send(
        request.start(1),
        StepPlan(1, (PlanRow(1, 8, (1, 2, 3)),)),
        StepPlan(2, (PlanRow(1, 8),)),
        Drop(1),
        StepPlan(3, (PlanRow(1, 8),)),
    )
    results = [scheduler.next(StepResult) for _ in range(3)]
    assert [r.step for r in results] == [1, 2, 3]
    assert [len(r.rows) for r in results] == [1, 1, 0]
    assert results[1].gap < 0.04, "the next plan was there already"
    ids = unpack_ids(results[0].rows[0].ids) + unpack_ids(results[1].rows[0].ids)
    assert ids == alone(request).ids[:2]
    scheduler.close()


def test_a_new_scheduler_is_found_and_old_rows_and_frames_are_void(
    config: RuntimeConfig, children: list[subprocess.Popen[bytes]]
) -> None:
    scheduler = FakeScheduler(config, epoch=7)
    spawn(config, children)
    first = scheduler.shake_hands()
    scheduler.send(Request([3, 4, 5]).start(1), StepPlan(1, (PlanRow(1, 2, (1,)),)))
    scheduler.next(StepResult)
    scheduler.close()
    scheduler = FakeScheduler(config, epoch=8)
    began = time.monotonic()
    assert scheduler.next(Hello).instance == first.instance, "the same process, without being told"
    assert time.monotonic() - began < 2
    scheduler.send(Hello(version=1, role="scheduler", instance=2, epoch=8))
    scheduler.send(Request([3]).start(1), StepPlan(1, (PlanRow(1, 2, (1,)),)), epoch=7)
    scheduler.send(StepPlan(2, (PlanRow(1, 2, (1,)),)))
    result = scheduler.next(StepResult)
    assert result.step == 2 and result.rows == ()
    request = Request([6, 7])
    assert finish(scheduler, request, 1) == alone(request).ids
    scheduler.close()


def test_junk_on_the_wire_is_refused_not_fatal(config: RuntimeConfig, children: list[subprocess.Popen[bytes]]) -> None:
    scheduler = FakeScheduler(config, epoch=7)
    spawn(config, children)
    scheduler.shake_hands()
    for junk in ([b""], [b"x" * 12, b"y"], [encode_frame(7, [])[0], b"\xc1\xc1"], [b"", b"", b""]):
        scheduler._socket.send_multipart([scheduler.worker, *junk])
    request = Request([3, 4, 5])
    assert finish(scheduler, request, 1) == alone(request).ids
    scheduler.close()


def test_a_constraint_that_fails_here_is_reported_and_ends_its_row(
    config: RuntimeConfig, children: list[subprocess.Popen[bytes]]
) -> None:
    scheduler = FakeScheduler(config, epoch=7)
    spawn(config, children)
    scheduler.shake_hands()
    bad = Request([3], constraint=ConstraintSpec("unheard-of", "x"))
    key = bad.start(1).constraint_key
    assert bad.constraint is not None
    scheduler.send(Constraint(key, bad.constraint))
    scheduler.send(bad.start(1), StepPlan(1, (PlanRow(1, 4, (1,)),)))
    ends, failures, step = [], [], 1
    while not (ends and failures):
        for message in scheduler.receive()[2]:
            if isinstance(message, ConstraintFailed):
                failures.append(message)
            elif isinstance(message, StepResult):
                ends += [row.end for row in message.rows if row.end is not None]
                if not ends:  # it still compiles: the row waits
                    step += 1
                    scheduler.send(StepPlan(step, (PlanRow(1, 4),)))
    assert [end.reason for end in ends] == ["error"] and "unheard-of" in ends[0].message
    (failed,) = failures
    assert (failed.key, failed.kind) == (key, "unsupported")
    good = Request([3], constraint=spec([[4], [5, 6]]))
    assert good.constraint is not None
    scheduler.send(Constraint(good.start(2).constraint_key, good.constraint))
    assert finish(scheduler, good, 2) == alone(good).ids
    scheduler.close()


def test_heart_and_pulse_go_on_during_a_long_step(
    config: RuntimeConfig, children: list[subprocess.Popen[bytes]]
) -> None:
    scheduler = FakeScheduler(config, epoch=7)
    spawn(config, children, step_s=3.0)
    scheduler.shake_hands()
    time.sleep(0.3)
    pulse = read_pulse(pulse_path(config.run_dir, "worker"))
    assert pulse is not None and pulse.phase == IDLE, "the answer to Hello ends loading"
    scheduler.send(Request([3]).start(1), StepPlan(1, (PlanRow(1, 2, (1,)),)))
    time.sleep(0.5)
    pulse = read_pulse(pulse_path(config.run_dir, "worker"))
    assert pulse is not None and pulse.phase == BUSY
    busy = False
    while not busy:
        _, _, messages = scheduler.receive()
        assert not any(isinstance(m, StepResult) for m in messages), "no beat came before the step's end"
        busy = any(isinstance(m, Heartbeat) and m.busy for m in messages)
    scheduler.close()


@pytest.mark.parametrize("known", [True, False])
def test_sigterm_ends_it_and_sigint_does_not(
    known: bool, config: RuntimeConfig, children: list[subprocess.Popen[bytes]]
) -> None:
    child = spawn(config, children)
    scheduler = FakeScheduler(config, epoch=7)
    scheduler.next(Hello)
    if known:
        scheduler.send(Hello(version=1, role="scheduler", instance=1, epoch=7))
    child.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(3) == 0
    scheduler.close()


def test_it_ends_with_its_parent(config: RuntimeConfig) -> None:
    """A parent that is killed with -9 leaves no worker."""
    script = f"""
import os, subprocess, sys, time, msgspec
from ramet.runtime.protocol.config import RuntimeConfig
config = msgspec.structs.replace(RuntimeConfig.from_json({config.to_json()!r}), parent_pid=os.getpid())
child = subprocess.Popen([sys.executable, {str(CHILD)!r}, config.to_json()])
print(child.pid, flush=True)
time.sleep(60)
"""
    path = Path(config.run_dir) / "parent.py"
    path.write_text(script)
    parent = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    scheduler = FakeScheduler(config, epoch=7)
    scheduler.shake_hands()
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _runs(worker):
        time.sleep(0.05)
    assert not _runs(worker)
    scheduler.close()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
