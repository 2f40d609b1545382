"""Server-sent events: bytes of a chunk are put together from a template per stream and the few parts that change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .fields import GenerationBody, StreamOptions

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


class ChunkWriter:
    """Chunks of one stream. ``with_usage``: every chunk has ``usage``, null until the last one. ``progress``: every
    chunk tells the usage so far."""

    def __init__(self, head: dict[str, Any], *, with_usage: bool, progress: bool = False) -> None:
        self._head = b"data: " + orjson.dumps(head)[:-1]
        self._begin = self._head + b',"choices":[{"index":'
        self._end = b'}],"usage":null}\n\n' if with_usage else b"}]}\n\n"
        self.with_usage = with_usage
        self.progress = progress

    def so_far(self, usage: dict[str, Any]) -> None:
        """The usage that the chunks from now on tell."""
        self._end = b'}],"usage":' + orjson.dumps(usage) + b"}\n\n"

    def chat(
        self, index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null", more: bytes = b""
    ) -> bytes:
        """All but ``index`` are JSON; ``more``: further fields of the choice, each after a comma."""
        return b'%b%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b%b' % (
            self._begin,
            index,
            delta,
            logprobs,
            finish,
            more,
            self._end,
        )

    def text(
        self, index: int, text: bytes, logprobs: bytes = b"null", finish: bytes = b"null", more: bytes = b""
    ) -> bytes:
        return b'%b%d,"text":%b,"logprobs":%b,"finish_reason":%b%b%b' % (
            self._begin,
            index,
            text,
            logprobs,
            finish,
            more,
            self._end,
        )

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk, without choices."""
        return self._head + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"


def chunk_writer(head: dict[str, Any], body: GenerationBody) -> ChunkWriter:
    """The writer of what ``body.stream_options`` ask for."""
    options = body.stream_options or StreamOptions()
    with_usage, progress = bool(options.include_usage), bool(options.continuous_usage_stats)
    return ChunkWriter(head, with_usage=with_usage, progress=with_usage and progress)


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
