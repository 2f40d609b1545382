"""``POST /v1/programs``: compiled programs run next to the scheduler, one request for many runs of many calls.

The body is ``{"graph": ..., "items": [{argument: text}, ...], "options": {...}}``; the answer is a JSON object a line:
variables as they come (``item``, ``name``, ``value``), and for each item its ``result`` or ``error``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ramet.engine_backend import EngineBackend
from ramet.frontend_lang.core import StateCore
from ramet.frontend_lang.errors import ProgramError
from ramet.frontend_lang.graph import Graph
from ramet.frontend_lang.loop import LoopThread
from ramet.frontend_lang.options import Options, make_options
from ramet.frontend_lang.replay import Replay
from ramet.frontend_lang.run import Run
from ramet.frontend_lang.slot import Slot
from ramet.runtime.frontend.http.errors import bad_request, translate
from ramet.runtime.frontend.http.remote import Lines
from ramet.runtime.frontend.http.server import Server, read_body, watcher
from ramet.runtime.protocol.errors import GenerationFailed, RametError
from ramet.runtime.protocol.messages import Namespace

MAX_ITEMS = 100_000
AT_ONCE = 1000
"""Items that run at the same time."""


class ProgramsBody(msgspec.Struct, frozen=True):
    graph: Graph
    items: list[dict[str, Any]]
    options: dict[str, Any] = {}


class ProgramResult(msgspec.Struct, frozen=True):
    """``slots``: values of all calls by number; ``returns``: how the returned value is made of them."""

    text: str
    messages: list[dict[str, str]]
    variables: dict[str, Any]
    metas: dict[str, Any]
    slots: dict[int, Any]
    returns: Any


class ProgramFailure(msgspec.Struct, frozen=True):
    message: str
    type: str
    code: str
    param: str | None = None
    variable: str | None = None
    line: int = 0


class ProgramLine(msgspec.Struct, frozen=True, omit_defaults=True):
    item: int
    name: str = ""
    value: Any = None
    result: ProgramResult | None = None
    error: ProgramFailure | None = None


_body = msgspec.json.Decoder(ProgramsBody)


def add_program_routes(app: FastAPI) -> None:
    """On an app that ``create_app`` made."""
    server: Server = app.state.server
    backends: dict[str, EngineBackend] = {}

    def backend_of(tenant: str) -> EngineBackend:
        if tenant not in backends:
            loop = LoopThread.current()
            namespace = Namespace(tenant=tenant)
            backends[tenant] = EngineBackend(loop, server.client, server.tokenizer, server.meta, namespace=namespace)
        return backends[tenant]

    @app.post("/v1/programs")
    async def programs(request: Request) -> Response:
        """Run a compiled program for every item."""
        try:
            asked = _body.decode(await read_body(request))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise bad_request(str(error), None, "invalid_type") from None
        options = _checked(asked)
        batch = _Batch(backend_of(request.state.tenant), asked, options)
        watch = watcher(request, batch.cancel)

        async def lines() -> AsyncIterator[bytes]:
            try:
                async for line in batch.lines():
                    yield line
            finally:
                watch.cancel()
                batch.cancel()

        return Lines(lines())


def _checked(asked: ProgramsBody) -> Options:
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


class _Batch:
    """All runs of one request."""

    def __init__(self, backend: EngineBackend, asked: ProgramsBody, options: Options) -> None:
        self._backend, self._asked, self._options = backend, asked, options
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._runs: list[Run] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._json = msgspec.json.Encoder()

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        for run in self._runs:
            run.cancel("its client went away")

    async def lines(self) -> AsyncIterator[bytes]:
        self._tasks = [asyncio.ensure_future(self._one(i, item)) for i, item in enumerate(self._asked.items)]
        done = asyncio.gather(*self._tasks, return_exceptions=True)
        done.add_done_callback(lambda _: self._out.put_nowait(None))
        while (line := await self._out.get()) is not None:
            more = [line]
            while not self._out.empty() and (following := self._out.get_nowait()) is not None:
                more.append(following)
            yield b"".join(more)
            if done.done() and self._out.empty():
                return

    def _say(self, line: ProgramLine) -> None:
        self._out.put_nowait(self._json.encode(line) + b"\n")

    async def _one(self, item: int, arguments: Mapping[str, Any]) -> None:
        async with self._gate:
            graph = self._asked.graph
            run = Run(graph.name, self._backend, self._options)
            self._runs.append(run)
            core = StateCore(run, self._backend.open())
            replay = Replay(core, graph, (), {**graph.defaults, **arguments})
            run.held.append(replay)
            try:
                await self._follow(item, core, replay)
            except Exception as error:
                self._say(ProgramLine(item, error=_failure(core.error or error)))
            finally:
                run.end_body()
                self._runs.remove(run)

    async def _follow(self, item: int, core: StateCore, replay: Replay) -> None:
        running = asyncio.ensure_future(replay.run())
        telling = asyncio.ensure_future(self._tell(item, core))
        try:
            await running
            await core.settled()
            if core.error is not None:
                raise core.error
        finally:
            running.cancel()
            telling.cancel()
        names = [name for name in core.declared if isinstance(name, str)]
        result = ProgramResult(
            core.log.text(),
            core.messages,
            {name: core.declared[name].value() for name in names},
            {name: core.declared[name].meta() for name in names},
            {number: await _value(slot) for number, slot in replay.slots.items()},
            replay.returns,
        )
        self._say(ProgramLine(item, result=result))

    async def _tell(self, item: int, core: StateCore) -> None:
        """Say each variable of the root as soon as it is there."""
        said: set[int] = set()

        async def tell(name: str, slot: Slot) -> None:
            await slot.wait()
            with contextlib.suppress(Exception):  # the error is told with the item's end
                self._say(ProgramLine(item, name, slot.value()))

        async with contextlib.AsyncExitStack() as stack:
            while True:
                for name, slot in list(core.declared.items()):
                    if isinstance(name, str) and id(slot) not in said:
                        said.add(id(slot))
                        stack.callback(asyncio.ensure_future(tell(name, slot)).cancel)
                await core.declarations.wait()


async def _value(slot: Slot) -> Any:
    await slot.wait()
    return slot.value()


def _failure(error: Exception) -> ProgramFailure:
    cause = error.cause if isinstance(error, ProgramError) and error.cause is not None else error
    shown = translate(cause if isinstance(cause, RametError) else GenerationFailed(str(cause))).body()["error"]
    variable, line = (error.variable, error.where.line) if isinstance(error, ProgramError) else (None, 0)
    return ProgramFailure(str(error), shown["type"], shown["code"], shown["param"], variable, line)


def encode_body(graph: Graph, items: list[dict[str, Any]], options: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(ProgramsBody(graph, items, dict(options)))


def decode_line(line: bytes) -> ProgramLine:
    return msgspec.json.decode(line, type=ProgramLine)


__all__ = ["add_program_routes", "decode_line", "encode_body"]
