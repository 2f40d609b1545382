"""The client's line to the scheduler: handshake, epochs, heartbeats. Knows messages, nothing of requests.

A scheduler that was restarted has a new epoch. We learn it from its Hello: the answer to ours, which we send when the
line comes up and whenever nothing was heard for a while, or to a frame with an epoch that is over.

Beats come from the loop, so a program that blocks its loop falls silent, and the scheduler gives up its requests. When
it goes on, or reads that it was given up, everything open is sent again: what the scheduler still has, it ignores.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Any, Protocol

import zmq
import zmq.asyncio
from ramet.runtime.protocol.errors import GenerationFailed
from ramet.runtime.protocol.messages import PROTOCOL_VERSION, Heartbeat, Hello, ToFrontend
from ramet.runtime.protocol.transport import ANY_EPOCH, BadFrame, FrameDecoder, connect_dealer, encode_frames

log = logging.getLogger("ramet.frontend")

BUSY_BEAT_S = 0.25
IDLE_BEAT_S = 1.0
HELLO_RETRY_S = 0.1
SILENCE_S = 1.0
STALL_S = 3.0
"""A pause between two beats after which the scheduler may have given us up (it waits 5 s)."""


class Receiver(Protocol):
    def resync(self) -> None:
        """The scheduler knows nothing of us, or may not: send everything that is open again."""

    def message(self, message: Any) -> None: ...

    def unsent(self, message: Any, error: Exception) -> None:
        """The message cannot be sent: it has no encoding, or is too large."""

    def lost(self, seconds: float) -> None:
        """Called at each beat while nothing has been heard for ``seconds``."""

    @property
    def busy(self) -> bool: ...


class Link:
    """One DEALER socket. ``send`` may be called from the loop's thread only; messages of one turn share a frame."""

    def __init__(self, endpoint: str, receiver: Receiver, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._receiver = receiver
        self._clock = clock
        self._instance = secrets.randbits(62) + 1
        self._outbox: list[Any] = []
        self._flushing = False
        self._beats = 0
        self._heard = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._known = asyncio.Event()
        self._decoder: FrameDecoder[Any] = FrameDecoder(ToFrontend)
        self.epoch = ANY_EPOCH
        self.hello: Hello | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = zmq.asyncio.Context()
        identity = b"f" + self._instance.to_bytes(8, "big")
        self._socket = connect_dealer(self._context, self._endpoint, identity)
        self._heard = self._clock()
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._beat())]

    async def ready(self, timeout_s: float) -> Hello:
        """The scheduler's Hello. Raises GenerationFailed if none comes in time."""
        try:
            await asyncio.wait_for(self._known.wait(), timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise GenerationFailed(
                f"no scheduler answers at {self._endpoint} within {timeout_s:g} s; is the runtime started?"
            ) from None
        assert self.hello is not None
        return self.hello

    async def close(self) -> None:
        if not self._tasks:
            return
        self._flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._socket.close(linger=200)
        self._context.term()

    # ------------------------------------------------------------ out

    @property
    def known(self) -> bool:
        return self.epoch != ANY_EPOCH

    def send(self, message: Any) -> None:
        """Nothing is sent before the scheduler is known: ``new_epoch`` then sends what is open."""
        if not self.known:
            return
        self._outbox.append(message)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def nudge(self) -> None:
        """Work has begun or ended: the next beat comes at the other pace."""
        self._wake.set()

    def _flush(self) -> None:
        self._flushing = False
        if self._outbox:
            messages, self._outbox = self._outbox, []
            self._put(self.epoch, messages)

    def _put(self, epoch: int, messages: list[Any]) -> None:
        if self._socket.closed:
            return
        try:
            frames = list(encode_frames(epoch, messages))
        except Exception as error:  # of one message: the others of the turn go their way
            if len(messages) > 1:
                for message in messages:
                    self._put(epoch, [message])
            else:
                self._receiver.unsent(messages[0], error)
            return
        for frame in frames:
            self._socket.send_multipart(frame, copy=True).add_done_callback(_report)

    async def _beat(self) -> None:
        last = self._clock()
        while True:
            self._beats += 1
            now = self._clock()
            stalled, last = now - last > STALL_S, now
            silent = now - self._heard
            if not self.known or silent > SILENCE_S:
                # Asked again and again: the frame may have gone to a scheduler that died. Any answer ends the silence.
                self._put(ANY_EPOCH, [Hello(PROTOCOL_VERSION, "frontend", self._instance)])
            if self.known:
                self._put(self.epoch, [Heartbeat(self._beats, self._receiver.busy)])
            if self.known and stalled:
                self._receiver.resync()
            if silent > SILENCE_S:
                self._receiver.lost(silent)
            pause = HELLO_RETRY_S if not self.known else BUSY_BEAT_S if self._receiver.busy else IDLE_BEAT_S
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            self._wake.clear()

    # ------------------------------------------------------------ in

    async def _receive(self) -> None:
        while True:
            parts = await self._socket.recv_multipart()
            self._heard = self._clock()
            try:
                epoch, messages = self._decoder.decode(parts)
            except BadFrame as error:
                log.warning("frame of the scheduler refused: %s", error)
                continue
            for message in messages:
                if type(message) is Hello:
                    self._greet(message)
                elif epoch in (ANY_EPOCH, self.epoch):
                    self._receiver.message(message)

    def _greet(self, hello: Hello) -> None:
        self.hello = hello
        if hello.epoch == self.epoch:
            return
        self.epoch = hello.epoch
        self._outbox.clear()
        self._receiver.resync()
        self._known.set()


def _report(sent: asyncio.Future[Any]) -> None:
    if not sent.cancelled() and sent.exception() is not None:
        log.warning("a frame could not be sent: %s", sent.exception())
