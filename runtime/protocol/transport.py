"""ZeroMQ sockets and frames.

A frame is two parts, ``[header, body]``: the header holds the protocol version and the receiver's epoch, the body is a
msgpack list of messages (one frame per peer and step; several, where they would take more than ``FRAME_BYTES``). The
scheduler binds one ROUTER per side; frontends and the worker connect DEALERs. No high-water mark drops (admission
bounds what is queued); a ROUTER that cannot route raises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from .errors import RametError
from .messages import PROTOCOL_VERSION

MAX_FRAME = 256 * 1024 * 1024
"""What a socket takes: a longer frame cuts the line, and whatever it held is lost."""
FRAME_BYTES = 32 * 1024 * 1024
MAX_MESSAGE = MAX_FRAME - 1024
ANY_EPOCH = 0
_HEADER = struct.Struct("<IQ")
_encoder = msgspec.msgpack.Encoder()
T = TypeVar("T")


class BadFrame(RametError):
    """A frame that does not decode: refused and logged by the receiver, never fatal."""

    code = "bad_frame"


class MessageTooLarge(RametError):
    """One message that no frame can hold."""

    code = "message_too_large"


def encode_frames(epoch: int, messages: Sequence[Any], most: int = FRAME_BYTES) -> Iterator[list[bytes]]:
    """The messages in order, in frames of about ``most`` bytes (one message alone may have up to ``MAX_MESSAGE``).
    Raises MessageTooLarge, and what the encoder raises for a value that has no encoding."""
    header, body = encode_frame(epoch, messages)
    if len(body) <= most or (len(messages) == 1 and len(body) <= MAX_MESSAGE):
        yield [header, body]
    elif len(messages) == 1:
        raise MessageTooLarge(
            f"the request or its answer takes {len(body)} bytes between the processes; at most {MAX_MESSAGE} are "
            "possible: send less in one request"
        )
    else:
        half = len(messages) // 2
        yield from encode_frames(epoch, messages[:half], most)
        yield from encode_frames(epoch, messages[half:], most)


def encode_frame(epoch: int, messages: Sequence[Any]) -> list[bytes]:
    return [_HEADER.pack(PROTOCOL_VERSION, epoch), _encoder.encode(messages)]


class FrameDecoder(Generic[T]):
    """Decodes frames of one direction: ``FrameDecoder(ToWorker)``."""

    def __init__(self, union: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[union])

    def decode(self, parts: Sequence[bytes]) -> tuple[int, list[T]]:
        """(epoch the sender believes in, messages). Raises BadFrame."""
        try:
            header, body = parts
            version, epoch = _HEADER.unpack(header)
            if version != PROTOCOL_VERSION:
                raise BadFrame(f"protocol version {version}, expected {PROTOCOL_VERSION}")
            return epoch, self._decoder.decode(body)
        except (ValueError, struct.error, msgspec.MsgspecError) as error:
            raise BadFrame(f"frame does not decode: {error}") from error


def _prepare(socket: Any) -> None:
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)


def bind_router(context: Any, endpoint: str) -> Any:
    socket = context.socket(zmq.ROUTER)
    _prepare(socket)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    socket.bind(endpoint)
    return socket


def connect_dealer(context: Any, endpoint: str, identity: bytes) -> Any:
    """``context`` may be zmq.Context or zmq.asyncio.Context. Reconnects by itself when the peer restarts."""
    socket = context.socket(zmq.DEALER)
    _prepare(socket)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
    socket.connect(endpoint)
    return socket
