"""The scheduler process: two ROUTER sockets around the pure core.

One turn: take all frames that are there, schedule, send the worker its plan first and then each frontend one frame.
Nothing sleeps: the turn waits in ``poll`` until a frame, a signal or a deadline comes.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from ramet.runtime.protocol.config import RuntimeConfig
from ramet.runtime.protocol.lifeline import end_with_parent
from ramet.runtime.protocol.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Constraint,
    ConstraintFailed,
    Control,
    Finished,
    Heartbeat,
    Hello,
    Release,
    Score,
    Shutdown,
    StepResult,
    Submit,
    ToScheduler,
    Usage,
    WorkerError,
)
from ramet.runtime.protocol.pulse import Pulse, pulse_path
from ramet.runtime.protocol.transport import (
    ANY_EPOCH,
    BadFrame,
    FrameDecoder,
    MessageTooLarge,
    bind_router,
    encode_frames,
)

from .core import Out, Scheduler
from .peers import Frontends, WorkerPeer

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often silent frontends are looked for while there are any."""


class SchedulerProcess:
    """Everything happens on the calling thread. ``wake_fd``: readable when the wait is to end early."""

    def __init__(
        self,
        scheduler: Scheduler,
        config: RuntimeConfig,
        epoch: int,
        wake_fd: int,
        pulse: Pulse,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._epoch = epoch
        self._clock = clock
        self._pulse = pulse
        self._context: zmq.Context[Any] = zmq.Context()
        self._front = bind_router(self._context, config.frontend_endpoint)
        self._back = bind_router(self._context, config.worker_endpoint)
        self._poller = zmq.Poller()
        for source in (self._front, self._back, wake_fd):
            self._poller.register(source, zmq.POLLIN)
        self._decoder: FrameDecoder[Any] = FrameDecoder(ToScheduler)
        self._frontends = Frontends()
        self._worker = WorkerPeer()
        self._outgoing: dict[bytes, list[Any]] = {}
        self._look_due = 0.0
        self._stopping = False

    def stop(self) -> None:
        """End after this turn. Safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        self._pulse.idle()
        while not self._stopping:
            self._poller.poll(self._timeout_ms())
            self._pulse.busy()
            self._turn()
            self._pulse.idle()

    def close(self) -> None:
        if self._worker.instance:
            self._send(self._back, self._worker.address, [Shutdown()])
        for socket in (self._front, self._back):
            socket.close(200)
        self._context.term()

    # ------------------------------------------------------------ a turn

    def _timeout_ms(self) -> int:
        now = self._clock()
        wait = min(self._scheduler.wait_s(now), self._look_due - now if len(self._frontends) else math.inf)
        return -1 if wait == math.inf else max(0, math.ceil(wait * 1000))

    def _turn(self) -> None:
        for address, epoch, messages in self._frames(self._back):
            self._from_worker(address, epoch, messages)
        for address, epoch, messages in self._frames(self._front):
            self._from_frontend(address, epoch, messages)
        now = self._clock()
        if now >= self._look_due:
            self._look_due = now + LOOK_S
            for address in self._frontends.silent(now):
                log.info("frontend %s is silent: its requests are cancelled", address.hex())
                self._queue(self._scheduler.forget_client(address, now))
        self._feed_worker()
        self._queue(self._scheduler.take_messages())
        self._flush()

    def _frames(self, socket: zmq.Socket[bytes]) -> list[tuple[bytes, int, list[Any]]]:
        """All frames that are there; those that do not decode are refused and logged."""
        frames: list[tuple[bytes, int, list[Any]]] = []
        while True:
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return frames
            try:
                frames.append((parts[0], *self._decoder.decode(parts[1:])))
            except BadFrame as error:
                log.warning("refused a frame of %s: %s", parts[0].hex(), error)

    def _feed_worker(self) -> None:
        """Keep as many plans at the worker as it may have."""
        while self._worker.instance and self._scheduler.has_device:
            scheduled = self._scheduler.schedule(self._clock())
            if scheduled is None:
                return
            before, plan = scheduled
            messages = [*before, plan] if plan is not None else before
            if not self._send(self._back, self._worker.address, messages):
                log.warning("the worker's line is down: its rows wait for the next one")
                self._queue(self._scheduler.lose_device("the worker's line went down", self._clock()))
                self._worker = WorkerPeer()
                return
            if plan is None:
                return

    # ------------------------------------------------------------ the worker's frames

    def _from_worker(self, address: bytes, epoch: int, messages: Sequence[Any]) -> None:
        for message in messages:
            if isinstance(message, Hello):
                self._greet_worker(address, message)
            elif epoch != self._epoch or address != self._worker.address or isinstance(message, Heartbeat):
                continue
            elif isinstance(message, StepResult | WorkerError | ConstraintFailed):
                if isinstance(message, WorkerError):
                    log.warning("step %d failed at the worker: %s", message.step, message.message)
                self._queue(self._scheduler.apply(message, self._clock()))
                self._feed_worker()

    def _greet_worker(self, address: bytes, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            log.error("a worker speaks protocol %d, this is %d: refused", hello.version, PROTOCOL_VERSION)
            return
        self._send(self._back, address, [self._hello()])
        if hello.instance == self._worker.instance:
            return
        log.info("worker %s: %d blocks of %d", hello.fingerprint, hello.blocks, hello.block_size)
        self._worker = WorkerPeer(address, hello.instance, hello.fingerprint, hello.blocks, hello.block_size)
        self._queue(self._scheduler.reset_device(hello.blocks, hello.block_size, hello.fingerprint, self._clock()))

    # ------------------------------------------------------------ frontends' frames

    def _from_frontend(self, address: bytes, epoch: int, messages: Sequence[Any]) -> None:
        now = self._clock()
        if epoch not in (ANY_EPOCH, self._epoch):
            self._outgoing.setdefault(address, []).append(self._hello())
            return
        for message in messages:
            instance = message.instance if isinstance(message, Hello) else 0
            if self._frontends.heard(address, now, instance):
                self._scheduler.forget_client(address, now)
            if isinstance(message, Hello):
                self._outgoing.setdefault(address, []).append(self._hello())
            elif epoch == self._epoch:
                self._take_request(address, message, now)

    def _take_request(self, address: bytes, message: Any, now: float) -> None:
        if isinstance(message, Submit | Score):
            self._queue(self._scheduler.submit(address, message, now))
        elif isinstance(message, Cancel):
            self._queue(self._scheduler.cancel(address, message, now))
        elif isinstance(message, Release):
            self._queue(self._scheduler.release(address, message, now))
        elif isinstance(message, Constraint):
            self._scheduler.constraint(message)
        elif isinstance(message, Control):
            self._queue(self._scheduler.control(address, message, now))
        elif not isinstance(message, Heartbeat):
            log.warning("%s does not belong to a frontend: ignored", type(message).__name__)

    def _hello(self) -> Hello:
        worker = self._worker
        return Hello(
            PROTOCOL_VERSION,
            "scheduler",
            self._epoch,
            self._epoch,
            worker.fingerprint,
            worker.blocks,
            worker.block_size,
        )

    # ------------------------------------------------------------ out

    def _queue(self, out: Out) -> None:
        for client, message in out:
            self._outgoing.setdefault(client, []).append(message)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for address, messages in outgoing.items():
            if not self._send(self._front, address, messages):
                log.info("frontend %s is gone: its requests are cancelled", address.hex())
                self._frontends.gone(address)
                self._scheduler.forget_client(address, self._clock())

    def _send(self, socket: zmq.Socket[bytes], address: bytes, messages: Sequence[Any]) -> bool:
        try:
            for frame in encode_frames(self._epoch, messages):
                socket.send_multipart([address, *frame], zmq.NOBLOCK)
        except MessageTooLarge as error:
            log.error("%s", error)
            if len(messages) > 1:
                sent = [self._send(socket, address, [message]) for message in messages]
                return all(sent)
            id = getattr(messages[0], "id", None)
            return id is None or self._send(socket, address, [Finished(id, 0, "error", Usage(), message=str(error))])
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True


def main(config: RuntimeConfig) -> None:
    """The whole life of a scheduler."""
    end_with_parent(config.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its children in order
    pulse = Pulse(pulse_path(config.run_dir, "scheduler"))
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    epoch = int.from_bytes(os.urandom(8), "little") >> 1 | 1
    process = SchedulerProcess(Scheduler(config.scheduler), config, epoch, wake_read, pulse)
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    signal.set_wakeup_fd(wake_write)
    gc.freeze()  # what is loaded now stays: no collection need look at it again
    log.info("ready, epoch %d", epoch)
    try:
        process.run()
    finally:
        process.close()
