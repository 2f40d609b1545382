"""Server-sent events: bytes of a chunk are put together from a template per stream and the few parts that change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


class ChunkWriter:
    """Chunks of one stream. ``with_usage``: every chunk has ``usage``, null until the last one."""

    def __init__(self, head: dict[str, Any], *, with_usage: bool) -> None:
        self._head = b"data: " + orjson.dumps(head)[:-1]
        self._begin = self._head + b',"choices":[{"index":'
        self._end = b'}],"usage":null}\n\n' if with_usage else b"}]}\n\n"
        self.with_usage = with_usage

    def chat(self, index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        """All but ``index`` are JSON."""
        return b'%b%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b' % (
            self._begin,
            index,
            delta,
            logprobs,
            finish,
            self._end,
        )

    def text(self, index: int, text: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        return b'%b%d,"text":%b,"logprobs":%b,"finish_reason":%b%b' % (
            self._begin,
            index,
            text,
            logprobs,
            finish,
            self._end,
        )

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk, without choices."""
        return self._head + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"


class EventStream(Response):
    """Sends what ``body`` yields, each piece at once."""

    media_type = "text/event-stream"

    def __init__(self, body: AsyncIterator[bytes], headers: dict[str, str] | None = None) -> None:
        self.status_code = 200
        self.background: BackgroundTask | None = None
        self._body = body
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._body:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
