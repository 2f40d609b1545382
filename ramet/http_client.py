"""A small asyncio HTTP/1.1 client: JSON in, whole bodies or lines out, connections kept open. Nothing to install."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from ramet.runtime.protocol.errors import RametError

MAX_LINE = 64 * 1024 * 1024


class Unreachable(RametError):
    """The server does not answer, or not in HTTP."""

    code = "unreachable"


@dataclass(frozen=True, slots=True)
class Head:
    status: int
    headers: dict[str, str]


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    fresh: bool = True

    async def send(self, data: bytes) -> Head:
        self.writer.write(data)
        await self.writer.drain()
        status_line = await self.reader.readline()
        if not status_line:
            raise ConnectionResetError("the server closed the connection")
        headers: dict[str, str] = {}
        while (line := await self.reader.readline()) not in (b"\r\n", b"\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return Head(int(status_line.split(None, 2)[1]), headers)

    async def body(self, head: Head) -> AsyncIterator[bytes]:
        """Pieces of the body as they come."""
        if head.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := await self._chunk_size():
                yield await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            while (await self.reader.readline()) not in (b"\r\n", b"\n", b""):
                continue  # trailers
        elif "content-length" in head.headers:
            yield await self.reader.readexactly(int(head.headers["content-length"]))
        else:
            while data := await self.reader.read(65536):
                yield data

    async def _chunk_size(self) -> int:
        line = await self.reader.readline()
        try:
            return int(line.split(b";")[0], 16)
        except ValueError:
            what = "its answer is not HTTP" if line else "the server closed the connection in the middle of its answer"
            raise ConnectionResetError(what) from None

    def close(self) -> None:
        self.writer.close()


class HttpClient:
    """Of one server. ``base_url`` may have a path, which goes in front of every request's. One event loop only."""

    def __init__(self, base_url: str, headers: dict[str, str] | None = None, connections: int = 1000) -> None:
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no URL of a server, such as http://127.0.0.1:8000")
        self.base_url = base_url
        self._host, self._tls = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._headers = headers or {}
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(connections)

    async def whole(self, method: str, path: str, body: bytes | None = None) -> tuple[Head, bytes]:
        async with self.request(method, path, body) as (head, pieces):
            return head, b"".join([piece async for piece in pieces])

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes | None = None
    ) -> AsyncIterator[tuple[Head, AsyncIterator[bytes]]]:
        """Leaving early closes the connection, which is how the server learns of it. Raises Unreachable."""
        async with self._slots:
            connection, head = await self._sent(self._message(method, path, body))
            read_all = False

            async def pieces() -> AsyncIterator[bytes]:
                nonlocal read_all
                async for piece in connection.body(head):
                    yield piece
                read_all = True

            try:
                yield head, pieces()
            except (OSError, asyncio.IncompleteReadError) as error:
                raise Unreachable(f"the connection to {self.base_url} broke: {error}") from error
            finally:
                if read_all and head.headers.get("connection", "").lower() != "close":
                    connection.fresh = False
                    self._idle.append(connection)
                else:
                    connection.close()

    async def _sent(self, message: bytes) -> tuple[_Connection, Head]:
        while True:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                return connection, await connection.send(message)
            except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
                connection.close()
                if connection.fresh:
                    raise Unreachable(f"{self.base_url} does not answer as a server should: {error}") from error
            except BaseException:
                connection.close()
                raise

    async def _connect(self) -> _Connection:
        context = ssl.create_default_context() if self._tls else None
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context, limit=MAX_LINE)
        except OSError as error:
            raise Unreachable(f"no server answers at {self.base_url} ({error}): is `ramet serve` running?") from error
        return _Connection(reader, writer)

    def _message(self, method: str, path: str, body: bytes | None) -> bytes:
        headers = {"host": f"{self._host}:{self._port}", "accept": "application/json", **self._headers}
        if body is not None:
            headers |= {"content-type": "application/json", "content-length": str(len(body))}
        lines = [f"{method} {self._path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a body, without their ends."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if line:
                yield line
    if rest:
        yield rest
