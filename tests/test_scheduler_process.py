"""The process around the scheduler: handshakes, stale frames, silent frontends, a new worker."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig
from ramet.runtime.protocol.ids import pack_ids, unpack_ids
from ramet.runtime.protocol.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Control,
    ControlReply,
    Finished,
    Heartbeat,
    Hello,
    Limits,
    RowStart,
    Sampling,
    StepPlan,
    Submit,
    ToFrontend,
    TokenDelta,
    ToWorker,
)
from ramet.runtime.protocol.pulse import Pulse, read_pulse
from ramet.runtime.protocol.transport import ANY_EPOCH, FrameDecoder, connect_dealer, encode_frame
from ramet.runtime.scheduler.core import Scheduler
from ramet.runtime.scheduler.peers import SILENCE_S, Frontends
from ramet.runtime.scheduler.process import SchedulerProcess
from ramet.runtime.worker.core import WorkerCore
from ramet.runtime.worker.oracle import OracleRunner

EPOCH = 77


class Running:
    """A scheduler process on a thread of this one, with a clock that can be put forward."""

    def __init__(self, run_dir: Path) -> None:
        self.config = RuntimeConfig("", str(run_dir), scheduler=SchedulerConfig(check_invariants=True, block_size=4))
        self.ahead = 0.0
        self.pulse = run_dir / "scheduler.pulse"
        self._wake_read, self._wake_write = os.pipe()
        self.process = SchedulerProcess(
            Scheduler(self.config.scheduler),
            self.config,
            EPOCH,
            self._wake_read,
            Pulse(self.pulse),
            lambda: time.monotonic() + self.ahead,
        )
        self._thread = threading.Thread(target=self.process.run)
        self._thread.start()

    def stop(self) -> None:
        self.process.stop()
        os.write(self._wake_write, b"x")
        self._thread.join(5)
        assert not self._thread.is_alive()
        self.process.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


class Peer:
    """One end of a line: sends frames, waits for messages of a kind."""

    def __init__(self, endpoint: str, union: Any, name: bytes) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = connect_dealer(self._context, endpoint, name)
        self._decoder: FrameDecoder[Any] = FrameDecoder(union)
        self.heard: list[Any] = []

    def send(self, *messages: Any, epoch: int = EPOCH) -> None:
        self._socket.send_multipart(encode_frame(epoch, messages))

    def raw(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def listen(self, seconds: float = 0.2) -> list[Any]:
        """What comes within ``seconds``."""
        messages: list[Any] = []
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._socket.poll(int(left * 1000) + 1):
                messages += self._decoder.decode(self._socket.recv_multipart())[1]
        return messages

    def until(self, kind: type, seconds: float = 5.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for index, message in enumerate(self.heard):
                if isinstance(message, kind):
                    del self.heard[: index + 1]
                    return message
            self.heard += self.listen(0.05)
        raise AssertionError(f"no {kind.__name__} within {seconds} s")

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    scheduler = Running(tmp_path)
    yield scheduler
    scheduler.stop()


@pytest.fixture
def frontend(running: Running) -> Iterator[Peer]:
    peer = Peer(running.config.frontend_endpoint, ToFrontend, b"front")
    yield peer
    peer.close()


@pytest.fixture
def worker(running: Running) -> Iterator[Peer]:
    peer = Peer(running.config.worker_endpoint, ToWorker, b"work")
    yield peer
    peer.close()


def hello(role: str, instance: int = 5) -> Hello:
    blocks = {"blocks": 64, "block_size": 4, "fingerprint": "oracle"} if role == "worker" else {}
    return Hello(PROTOCOL_VERSION, role, instance, **blocks)  # type: ignore[arg-type]


def request(id: int = 1, tokens: int = 3) -> Submit:
    return Submit(id, pack_ids([1, 2, 3, 4, 5]), 5, Sampling(temperature=0.0), Limits(tokens))


def serve(worker: Peer, core: WorkerCore, steps: int) -> None:
    """Be a worker for so many plans."""
    end = time.monotonic() + 10
    while steps and time.monotonic() < end:
        messages, worker.heard = worker.heard + worker.listen(0.05), []
        for message in messages:
            if isinstance(message, RowStart):
                core.start(message)
            elif isinstance(message, StepPlan):
                worker.send(core.step(message))
                steps -= 1


def test_a_request_goes_round_and_waits_for_the_worker(frontend: Peer, worker: Peer) -> None:
    frontend.send(hello("frontend"), epoch=ANY_EPOCH)
    assert frontend.until(Hello).epoch == EPOCH
    frontend.send(request())
    frontend.until(Accepted)
    worker.send(hello("worker"), epoch=ANY_EPOCH)
    answer = worker.until(Hello)
    assert answer.epoch == EPOCH
    serve(worker, WorkerCore(OracleRunner(64, 4, 50)), 3)
    ids: list[int] = []
    while len(ids) < 3:
        ids += unpack_ids(frontend.until(TokenDelta).ids)
    assert frontend.until(Finished).reason == "length"


def test_a_stale_frame_is_dropped_and_answered_by_hello(frontend: Peer) -> None:
    frontend.send(request(), epoch=EPOCH + 1)
    messages = frontend.listen()
    assert [type(message) for message in messages] == [Hello]
    frontend.send(request(), epoch=ANY_EPOCH)
    assert not any(isinstance(message, Accepted) for message in frontend.listen())


def test_a_frame_that_does_not_decode_harms_nobody(running: Running, frontend: Peer, worker: Peer) -> None:
    for peer in (frontend, worker):
        peer.raw(b"rubbish")
        peer.raw(b"a", b"b", b"c")
        peer.raw(*encode_frame(EPOCH, [])[:1], b"\xff\xff")
    frontend.send(Control(9, "stats"))
    assert frontend.until(ControlReply).call_id == 9


def test_a_silent_frontend_is_given_up(running: Running, frontend: Peer) -> None:
    frontend.send(hello("frontend"), epoch=ANY_EPOCH)
    frontend.until(Hello)
    frontend.send(request())
    frontend.until(Accepted)
    with closing(Peer(running.config.frontend_endpoint, ToFrontend, b"other")) as other:
        for _ in range(8):
            running.ahead += 1.0
            other.send(Heartbeat())
            time.sleep(0.05)
        assert frontend.until(Finished).reason == "cancelled"
        other.send(Control(1, "stats"))
        assert b'"queued":0' in other.until(ControlReply).data


def test_a_new_worker_starts_the_rows_of_the_old_one_again(running: Running, frontend: Peer, worker: Peer) -> None:
    worker.send(hello("worker", 1), epoch=ANY_EPOCH)
    worker.until(Hello)
    frontend.send(request(tokens=6))
    first = worker.until(RowStart)
    core = WorkerCore(OracleRunner(64, 4, 50))
    core.start(first)
    plan = worker.until(StepPlan)
    worker.send(core.step(plan))
    said = unpack_ids(frontend.until(TokenDelta).ids)
    with closing(Peer(running.config.worker_endpoint, ToWorker, b"work2")) as second:
        second.send(hello("worker", 2), epoch=ANY_EPOCH)
        again = second.until(RowStart)
        assert unpack_ids(again.ids)[: 5 + len(said)] == [1, 2, 3, 4, 5, *said] and again.computed == 0
        worker.send(core.step(StepPlan(plan.step + 1, ())))
        assert not any(isinstance(message, Finished) for message in frontend.listen(0.1)), "the old worker is unheard"


def test_the_pulse_tells_work_from_idleness(running: Running, frontend: Peer) -> None:
    frontend.send(Control(1, "stats"))
    frontend.until(ControlReply)
    before = read_pulse(running.pulse)
    frontend.send(Control(2, "stats"))
    frontend.until(ControlReply)
    after = read_pulse(running.pulse)
    assert before is not None and after is not None and after.progress > before.progress


def test_frontends_fall_silent_one_by_one() -> None:
    frontends = Frontends()
    now = 100.0
    frontends.silent(now)
    frontends.heard(b"a", now, 1)
    frontends.heard(b"b", now, 2)
    while now < 100.0 + SILENCE_S + 1:
        now += 1.0
        frontends.heard(b"b", now)
        if gone := frontends.silent(now):
            assert gone == [b"a"]
    assert len(frontends) == 1
    assert frontends.heard(b"b", now, 3), "another instance has lost its state"


def test_our_own_stall_is_nobodys_silence() -> None:
    frontends = Frontends()
    frontends.silent(0.0)
    frontends.heard(b"a", 0.0, 1)
    assert frontends.silent(60.0) == []
    assert frontends.silent(61.0) == []
