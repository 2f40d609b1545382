"""``POST /v1/programs``: compiled programs run next to the scheduler, one request for many runs of many calls.

The body is ``{"graph": ..., "items": [{argument: text}, ...], "options": {...}, "stream": false}``; the answer is a
JSON object a line (see ``program_wire.py``). The first one names the run: ``POST /v1/programs/{run}`` answers the tools
that it calls, and cancels single items.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ramet.engine_backend import EngineBackend
from ramet.frontend_lang.loop import LoopThread
from ramet.frontend_lang.options import Options, make_options
from ramet.frontend_lang.prepared import Prepared
from ramet.program_runs import ItemRun
from ramet.program_wire import CallNews, Line, NewsBody, ProgramsBody, frame
from ramet.runtime.frontend.http.errors import HttpError, bad_request
from ramet.runtime.frontend.http.fields import check_depth
from ramet.runtime.frontend.http.remote import Lines
from ramet.runtime.frontend.http.server import Server, read_body, watcher
from ramet.runtime.protocol.messages import Namespace

MAX_ITEMS = 100_000
AT_ONCE = 1000
"""Items that run at the same time."""

_body = msgspec.json.Decoder(ProgramsBody)
_news = msgspec.json.Decoder(NewsBody)


class Frames(Lines):
    media_type = "application/vnd.msgpack"


def add_program_routes(app: FastAPI) -> None:
    """On an app that ``create_app`` made."""
    server: Server = app.state.server
    backends: dict[str, EngineBackend] = {}
    batches: dict[str, Batch] = {}

    def backend_of(tenant: str) -> EngineBackend:
        if tenant not in backends:
            loop = LoopThread.current()
            namespace = Namespace(tenant=tenant)
            client, tokenizer, most = server.client, server.tokenizer, server.max_priority
            backends[tenant] = EngineBackend(loop, client, tokenizer, server.meta, namespace, most)
        return backends[tenant]

    @app.post("/v1/programs")
    async def programs(request: Request) -> Response:
        """Run a compiled program for every item."""
        body = await read_body(request)
        check_depth(body)
        try:
            asked = _body.decode(body)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise bad_request(str(error), None, "invalid_type") from None
        tenant, options = request.state.tenant, _checked(asked)
        try:
            prepared = Prepared(asked.graph)
        except (TypeError, ValueError) as error:
            raise bad_request(str(error), "graph") from None
        batch = Batch(backend_of(tenant), asked, prepared, options, tenant)
        batches[batch.name] = batch
        watch = watcher(request, batch.cancel)

        async def lines() -> AsyncIterator[bytes]:
            try:
                async for line in batch.lines():
                    yield line
            finally:
                watch.cancel()
                batch.cancel()
                batches.pop(batch.name, None)

        return Frames(lines()) if batch.calls else Lines(lines())

    @app.post("/v1/programs/{run}")
    async def news(request: Request, run: str) -> Response:
        """Answers of tools that a run has called, or that an item of it is wanted no more."""
        body = await read_body(request)
        check_depth(body)
        try:
            told = _news.decode(body)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise bad_request(str(error), None, "invalid_type") from None
        batch = batches.get(run)
        if batch is None or batch.tenant != request.state.tenant:
            raise HttpError(404, f"no run {run!r} is under way", param="run", code="run_not_found")
        batch.told(told)
        return Response(b"{}", media_type="application/json")


def _checked(asked: ProgramsBody) -> Options:
    if asked.answer not in ("variables", "calls"):
        raise bad_request(f"answer must be 'variables' or 'calls', got {asked.answer!r}", "answer")
    if not 1 <= len(asked.items) <= MAX_ITEMS:
        raise bad_request(f"items holds {len(asked.items)}; 1 to {MAX_ITEMS} are possible", "items")
    wanted, known = set(asked.graph.arguments), {*asked.graph.arguments, *asked.graph.defaults}
    for index, item in enumerate(asked.items):
        if not wanted <= item.keys() <= known:
            raise bad_request(
                f"items[{index}] has {sorted(item)}; possible are {sorted(known)}, needed {sorted(wanted)}",
                f"items.{index}",
            )
    try:
        return make_options(asked.options, "options")
    except (TypeError, ValueError) as error:
        raise bad_request(str(error), "options") from None


class Batch:
    """All runs of one request."""

    def __init__(
        self, backend: EngineBackend, asked: ProgramsBody, prepared: Prepared, options: Options, tenant: str
    ) -> None:
        self.name = secrets.token_hex(16)
        self.tenant = tenant
        self.calls = asked.answer == "calls"
        self._backend, self._asked, self._options = backend, asked, options
        self._out: list[bytes] = []
        self._news = asyncio.Event()
        self._prepared = prepared
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._runs: dict[int, ItemRun] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._json = msgspec.json.Encoder(enc_hook=str)

    def cancel(self) -> None:
        for item in list(self._tasks):
            self._cancel(item, "its client went away")

    def _cancel(self, item: int, reason: str) -> None:
        task, run = self._tasks.get(item), self._runs.get(item)
        if run is not None:
            run.cancel(reason)
        if task is not None:
            task.cancel()

    def told(self, news: NewsBody) -> None:
        if news.cancel:
            self._cancel(news.item, "its client gave it up")
            return
        run = self._runs.get(news.item)
        if run is None or not run.told(news):
            raise bad_request(f"item {news.item} waits for no tools there", "item")

    async def lines(self) -> AsyncIterator[bytes]:
        self._say(CallNews(-1, run=self.name) if self.calls else Line(run=self.name))
        self._tasks = {i: asyncio.ensure_future(self._one(i, item)) for i, item in enumerate(self._asked.items)}
        done = asyncio.gather(*self._tasks.values(), return_exceptions=True)
        done.add_done_callback(lambda _: self._news.set())
        while self._out or not done.done():
            await self._news.wait()
            self._news.clear()
            if self._out:
                out, self._out = self._out, []
                yield b"".join(out)

    def _say(self, news: CallNews | Line) -> None:
        self._out.append(frame(news) if isinstance(news, CallNews) else self._json.encode(news) + b"\n")
        self._news.set()

    async def _one(self, item: int, arguments: Mapping[str, str]) -> None:
        async with self._gate:
            asked = self._asked
            run = ItemRun(item, self._backend, self._prepared, self._options, self._say, asked.stream, self.calls)
            self._runs[item] = run
            try:
                await run.go(arguments)
            finally:
                del self._runs[item]
                del self._tasks[item]


__all__ = ["add_program_routes"]
