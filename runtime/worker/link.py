"""The worker's side of the wire: one DEALER to the scheduler, epochs, and heartbeats from a thread of their own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from ramet.runtime.protocol.messages import PROTOCOL_VERSION, Heartbeat, Hello, ToWorker
from ramet.runtime.protocol.transport import ANY_EPOCH, BadFrame, FrameDecoder, connect_dealer, encode_frame

log = logging.getLogger(__name__)

HELLO_S = 0.2
"""Hello is repeated until a scheduler answers, and at every new connection."""
HEARTBEAT_S = 1.0


@dataclass(frozen=True)
class Identity:
    """Who this worker is. ``instance`` is drawn anew by each process, so that nothing meant for a dead one arrives."""

    instance: int
    fingerprint: str
    blocks: int
    block_size: int

    @staticmethod
    def new(fingerprint: str, blocks: int, block_size: int) -> Identity:
        return Identity(int.from_bytes(os.urandom(7), "little") + 1, fingerprint, blocks, block_size)

    def hello(self, epoch: int) -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            role="worker",
            instance=self.instance,
            epoch=epoch,
            fingerprint=self.fingerprint,
            blocks=self.blocks,
            block_size=self.block_size,
        )

    @property
    def address(self) -> bytes:
        return b"worker-%016x" % self.instance


@dataclass(frozen=True)
class NewEpoch:
    """A scheduler that was not known before has answered: all rows of the old one are void."""

    epoch: int


class SchedulerLink:
    """Used from the main thread alone, heartbeats aside. ``wake_fd``: readable when the wait is to end early."""

    def __init__(self, endpoint: str, identity: Identity, wake_fd: int) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._identity = identity
        self._socket = connect_dealer(self._context, endpoint, identity.address)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_CONNECTED)
        self._decoder: FrameDecoder[Any] = FrameDecoder(ToWorker)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(wake_fd, zmq.POLLIN)
        self._hello_due = 0.0
        self.epoch = 0
        """Epoch of the scheduler that answered last; 0: none has."""
        self._beats = _Heartbeats(self._context, endpoint, identity, self)
        self.steps = 0
        self.busy = False

    def receive(self, timeout_s: float) -> Sequence[Any]:
        """Messages of the next valid frame, in order; a scheduler's Hello shows as NewEpoch where it is one. Empty
        after the timeout, at a signal, and after a frame that is stale or does not decode."""
        self._say_hello()
        wait = timeout_s if self.epoch else min(timeout_s, HELLO_S)
        if not self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            ready = dict(self._poller.poll(int(wait * 1000)))
            if self._monitor in ready:
                self._monitor.recv_multipart()
                self._hello_due = 0.0
            if self._socket not in ready:
                return ()
        try:
            epoch, messages = self._decoder.decode(self._socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return ()
        except BadFrame as error:
            log.warning("refused a frame of the scheduler: %s", error)
            return ()
        return self._current(epoch, messages)

    def send(self, messages: Sequence[Any]) -> None:
        self._socket.send_multipart(encode_frame(self.epoch or ANY_EPOCH, messages))

    def close(self) -> None:
        self._beats.stop()
        self._socket.disable_monitor()
        self._monitor.close(0)
        # Results already sent may still be on their way when the last step was followed by a shutdown.
        self._socket.close(500)
        self._context.term()

    def _current(self, epoch: int, messages: Sequence[Any]) -> Sequence[Any]:
        """Keep what belongs to the scheduler known now; a Hello makes its sender the one that is known."""
        kept: list[Any] = []
        for message in messages:
            if isinstance(message, Hello):
                if message.epoch != self.epoch:
                    self.epoch = message.epoch
                    kept.append(NewEpoch(message.epoch))
            elif epoch in (self.epoch, ANY_EPOCH):
                kept.append(message)
        return kept

    def _say_hello(self) -> None:
        now = time.monotonic()
        if now >= self._hello_due:
            self._hello_due = float("inf") if self.epoch else now + HELLO_S
            self._socket.send_multipart(encode_frame(self.epoch or ANY_EPOCH, [self._identity.hello(self.epoch)]))


class _Heartbeats:
    """Beats on a socket of its own, so that a long step (which releases the GIL) is not taken for a death."""

    def __init__(self, context: Any, endpoint: str, identity: Identity, link: SchedulerLink) -> None:
        self._socket = connect_dealer(context, endpoint, identity.address + b"-beat")
        self._link = link
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            if self._link.epoch:
                beat = Heartbeat(progress=self._link.steps, busy=self._link.busy)
                self._socket.send_multipart(encode_frame(self._link.epoch, [beat]))
        self._socket.close(0)
