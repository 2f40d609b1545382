"""Compiled programs on a ramet server, from the client's side: runs that begin together share one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ramet.frontend_lang.backend import Branch, TokenBackend
from ramet.frontend_lang.graph import Graph
from ramet.frontend_lang.loop import LoopThread
from ramet.frontend_lang.options import NAMES, Options
from ramet.frontend_lang.recorded_branch import Failed, Feed, Generated, RecordedBranch, Scored
from ramet.frontend_lang.tools import ToolCall, ToolUse, answer_here
from ramet.http_client import HttpClient
from ramet.program_wire import CallNews, Failure, NewsBody, ProgramsBody, frames_of
from ramet.remote_errors import error_from, error_of
from ramet.runtime.protocol.errors import GenerationFailed, RametError

GATHER_S = 0.001
"""Runs that begin within so short a time go out together."""
GATHER_ROUNDS = 20
GRACE_S = 2.0
"""After the end of an item, for what is still being read of it."""


class Bundle:
    """Runs of one graph with the same options: one request."""

    def __init__(self, loop: LoopThread, http: HttpClient, graph: Graph, options: Options, streamed: bool) -> None:
        self._loop = loop
        self._http, self._graph, self._options, self._streamed = http, graph, options, streamed
        self.runs: list[Run] = []
        self._left = 0
        self._name = ""
        self._task: asyncio.Task[None] | None = None

    def send(self) -> None:
        self._left = len(self.runs)
        self._task = self._loop.start(self._exchange())

    async def _exchange(self) -> None:
        given = {name: value for name in NAMES if (value := getattr(self._options, name)) is not None}
        items = [dict(run.arguments) for run in self.runs]
        body = msgspec.json.encode(ProgramsBody(self._graph, items, given, self._streamed, "calls"))
        error: Exception = GenerationFailed("the server ended the answer before its end")
        try:
            async with self._http.request("POST", "/v1/programs", body) as (head, pieces):
                if head.status != 200:
                    raise error_of(head, b"".join([piece async for piece in pieces]))
                async for news in frames_of(pieces):
                    if news.run:
                        self._name = news.run
                    else:
                        self._take(news)
        except (RametError, msgspec.MsgspecError) as raised:
            error = raised
        finally:
            for run in self.runs:
                if not run.ended:
                    run.end(error)

    def _take(self, news: CallNews) -> None:
        run = self.runs[news.item]
        if news.end:
            self._left -= 1
            run.end(None)
        else:
            run.take(news)

    def cancelled(self, run: Run) -> None:
        """The last one hangs up, the others say so."""
        if all(one.ended for one in self.runs):
            if self._task is not None:
                self._task.cancel()
        elif self._name:
            self.post(NewsBody(self.runs.index(run), cancel=True))

    def post(self, news: NewsBody) -> asyncio.Task[None]:
        return self._loop.start(self._post(news))

    async def _post(self, news: NewsBody) -> None:
        head, body = await self._http.whole("POST", f"/v1/programs/{self._name}", msgspec.json.encode(news))
        if head.status != 200:
            raise error_of(head, body)


class Run:
    """See ``ramet.frontend_lang.compiled.RemoteRun``."""

    def __init__(self, backend: TokenBackend, bundle: Bundle, arguments: Mapping[str, str]) -> None:
        self.arguments = arguments
        self.ended = False
        self._backend, self._bundle = backend, bundle
        self._feed = Feed()
        self._roots = 0

    def open(self) -> Branch:
        self._roots += 1
        return RecordedBranch(self._backend, self._feed, self._roots - 1)

    def cancel(self) -> None:
        if not self.ended:
            self.ended = True
            self._bundle.cancelled(self)

    async def answer_tools(self, branch: Branch, use: ToolUse, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """The functions are here, the model's next turn is there."""
        assert isinstance(branch, RecordedBranch)
        item = self._bundle.runs.index(self)
        root, path = branch.name
        try:
            answered = await answer_here(branch, use, calls)
        except RametError:
            await self._bundle.post(NewsBody(item, root, path))
            raise
        await self._bundle.post(NewsBody(item, root, path, [call.answer() for call in answered]))
        return answered

    def take(self, news: CallNews) -> None:
        name = (news.root, news.path)
        if news.delta is not None:
            self._feed.put(name, news.delta)
        elif news.made is not None:
            self._feed.put(name, Generated(news.outcomes, news.made, news.diverged))
        elif news.scores is not None:
            self._feed.put(name, Scored(news.scores, news.diverged))
        else:
            self._feed.put(name, Failed(None if news.failure is None else _error(news.failure)))

    def end(self, error: Exception | None) -> None:
        self.ended = True
        if error is not None:
            self._feed.fail(error)
        else:
            # What stopped the rest there (an error of the body) is about to be found here, too.
            late = GenerationFailed("the server ended the program before its end")
            asyncio.get_running_loop().call_later(GRACE_S, self._feed.fail, late)


def _error(failure: Failure) -> RametError:
    shown: dict[str, Any] = {"message": failure.message, "type": failure.type, "code": failure.code}
    return error_from({**shown, "param": failure.param})


class Programs:
    """Starts runs on one server. Loop thread only."""

    def __init__(self, loop: LoopThread, http: HttpClient, backend: Callable[[], TokenBackend]) -> None:
        self._loop, self._http, self._backend = loop, http, backend
        self._open: list[tuple[tuple[int, Options, bool], Bundle]] = []

    def start(self, graph: Graph, arguments: Mapping[str, str], options: Options, streamed: bool) -> Run:
        key = (id(graph), options, streamed)
        bundle = next((open for kind, open in self._open if kind == key), None)
        if bundle is None:
            bundle = Bundle(self._loop, self._http, graph, options, streamed)
            self._open.append((key, bundle))
            self._wait(bundle, 0, GATHER_ROUNDS)
        run = Run(self._backend(), bundle, arguments)
        bundle.runs.append(run)
        return run

    def _wait(self, bundle: Bundle, known: int, rounds: int) -> None:
        """Send once no more runs come, or after a few rounds."""
        count = len(bundle.runs)
        if rounds and (count > known or not count):
            asyncio.get_running_loop().call_later(GATHER_S, self._wait, bundle, count, rounds - 1)
            return
        self._open = [entry for entry in self._open if entry[1] is not bundle]
        bundle.send()
