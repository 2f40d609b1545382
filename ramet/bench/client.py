"""One streamed request over a plain socket: the client shares the machine with the server and must cost little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ramet.runtime.protocol.errors import InvalidRequest

_READ = 1 << 16
_ERROR_LENGTH = 300


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Timings(Struct):
    """llama-server says here what it took from its cache."""

    cache_n: int | None = None


class _Event(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: object = None


_decode_event = msgspec.json.Decoder(_Event).decode


@dataclass
class Answer:
    """What came back. Times are of one monotonic clock, in seconds; ``gaps`` lie between pieces of text."""

    sent: float
    first: float = 0.0
    """Arrival of the first text; 0: there was none."""
    last: float = 0.0
    end: float = 0.0
    text: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    new_tokens: int = 0
    cached_tokens: int | None = None
    error: str = ""
    gaps: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Address:
    """Where a server listens. ``prefix``: path in front of /v1."""

    host: str
    port: int
    prefix: str = ""

    @staticmethod
    def of(url: str) -> Address:
        """Raises InvalidRequest for anything but http://HOST[:PORT][/PREFIX][/v1]."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidRequest(f"{url!r} is not a URL: {error}", param="url") from error
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidRequest(f"{url!r}: give an address like http://127.0.0.1:8000", param="url")
        return Address(parts.hostname, port or 80, parts.path.rstrip("/").removesuffix("/v1"))


async def stream(address: Address, path: str, body: bytes, timeout_s: float) -> Answer:
    """POST ``body`` (JSON that asks for a stream) and read its events. Never raises but for cancellation: what went
    wrong is in the answer's ``error``."""
    answer = Answer(time.perf_counter())
    try:
        await asyncio.wait_for(_exchange(address, path, body, answer), timeout_s)
    except asyncio.TimeoutError:
        answer.error = f"no end after {timeout_s:g} s"
    except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
        answer.error = f"{type(error).__name__}: {error}"[:_ERROR_LENGTH]
    answer.end = time.perf_counter()
    return answer


async def get(address: Address, path: str, timeout_s: float = 10.0) -> bytes:
    """Body of a GET. Raises OSError, EOFError, ValueError or asyncio.TimeoutError."""

    async def ask() -> bytes:
        reader, writer = await _open(address, "GET", path, b"")
        try:
            status, chunked = await _head(reader)
            data = await reader.read(-1)
            if status != 200:
                raise ValueError(f"HTTP {status}: {data[:_ERROR_LENGTH]!r}")
            return b"".join(_Chunks().feed(data)) if chunked else data
        finally:
            writer.close()

    return await asyncio.wait_for(ask(), timeout_s)


async def _exchange(address: Address, path: str, body: bytes, answer: Answer) -> None:
    reader, writer = await _open(address, "POST", path, body)
    try:
        status, chunked = await _head(reader)
        chunks, lines, parts = _Chunks(), _Lines(), list[str]()
        raw = b""
        while data := await reader.read(_READ):
            now = time.perf_counter()
            for piece in chunks.feed(data) if chunked else (data,):
                if status != 200:
                    raw += piece
                    continue
                for line in lines.feed(piece):
                    if line == b"data: [DONE]":
                        answer.text = "".join(parts)
                        return
                    if line.startswith(b"data:"):
                        _take(_decode_event(line[5:]), answer, parts, now)
        answer.text = "".join(parts)
        if status != 200:
            answer.error = f"HTTP {status}: {raw.decode(errors='replace')[:_ERROR_LENGTH]}"
        elif not answer.error:
            answer.error = "the stream ended without [DONE]"
    finally:
        writer.close()


def _take(event: _Event, answer: Answer, parts: list[str], now: float) -> None:
    if event.error is not None:
        answer.error = str(event.error)[:_ERROR_LENGTH]
    for choice in event.choices:
        piece = choice.text if choice.delta is None else choice.delta.content
        if choice.finish_reason:
            answer.finish = choice.finish_reason
        if piece:
            parts.append(piece)
            if answer.first:
                answer.gaps.append(now - answer.last)
            else:
                answer.first = now
            answer.last = now
    if event.usage is not None:
        answer.prompt_tokens = event.usage.prompt_tokens
        answer.new_tokens = event.usage.completion_tokens
        details = event.usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            answer.cached_tokens = details.cached_tokens
    if event.timings is not None and event.timings.cache_n is not None:
        answer.cached_tokens = event.timings.cache_n


async def _open(
    address: Address, method: str, path: str, body: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = (
        f"{method} {address.prefix}{path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nAccept: */*\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return reader, writer


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """(status, whether the body comes in chunks)."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise ValueError(f"not an HTTP answer: {lines[0]!r}")
    return int(words[1]), any(line.startswith("transfer-encoding:") and "chunked" in line for line in lines)


class _Chunks:
    """Takes HTTP's chunked framing off a body that arrives in arbitrary pieces.

    A pending size line is kept in ``_rest``; ``_left`` counts the bytes that the chunk still lacks, its CRLF included.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        self._ended = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        data = self._rest + data
        self._rest = b""
        while data and not self._ended:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                # Of the CRLF at the end of the chunk, as much as has come: 2 - left bytes.
                content = part[: max(0, len(part) - max(0, 2 - self._left))]
                if content:
                    yield content
                continue
            line, found, after = data.partition(b"\r\n")
            if not found:
                self._rest = data
                return
            size = int(line.split(b";", 1)[0], 16)
            if size == 0:
                self._ended = True  # what follows is an empty line, or trailers
                return
            self._left, data = size + 2, after


class _Lines:
    """Lines of a body that arrives in arbitrary pieces, without their ends."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
