"""Compiled programs, run by a server: their branches tell what becomes of their calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ramet.engine_backend import EngineBackend
from ramet.frontend_lang.backend import Delta, GenCall, Outcome, Scores
from ramet.frontend_lang.budget import Budget
from ramet.frontend_lang.core import StateCore
from ramet.frontend_lang.options import Options
from ramet.frontend_lang.prepared import Prepared
from ramet.frontend_lang.replay import Replay
from ramet.frontend_lang.run import Run
from ramet.frontend_lang.slot import CallSlot, Slot
from ramet.frontend_lang.token_branch import Made, TokenBranch
from ramet.frontend_lang.tools import ToolCall, ToolError, ToolUse
from ramet.program_wire import AskedTool, CallNews, Line, NewsBody, Result, failure_of

Say = Callable[[CallNews | Line], None]
SNIPPET = 12
MAX_ANSWER = 16_000_000
"""Characters of all values of one item's answer."""
MAX_TEXT = 4_000_000
"""Characters that one item may make by quoting: several times a long context."""


class ItemRun:
    """One run of a graph. ``calls``: tell of calls, not of variables."""

    def __init__(
        self,
        item: int,
        backend: EngineBackend,
        prepared: Prepared,
        options: Options,
        say: Say,
        stream: bool,
        calls: bool,
    ) -> None:
        self.item, self.say, self.stream, self.calls = item, say, stream, calls
        self._prepared, self._backend = prepared, backend
        self._roots = 0
        self._asked: dict[tuple[int, tuple[int, ...]], asyncio.Future[list[str] | None]] = {}
        self.budget = Budget(MAX_TEXT)
        self._run = Run(
            prepared.graph.name, backend, options, streamed=stream, answer_tools=self._answers, budget=self.budget
        )

    async def go(self, arguments: Mapping[str, str]) -> None:
        """To the end, of which it tells. Cancelling ends its calls."""
        run, graph = self._run, self._prepared.graph
        core = StateCore(run, self._open())
        replay = Replay(core, self._prepared, {**graph.defaults, **arguments}, self._open)
        run.held.append(replay)
        follower: Follower = Quiet() if self.calls else Variables(self, core)
        try:
            try:
                returned = await replay.run()
            except Exception as error:
                run.fail_body(error)
                follower.failed(error)
                await self._settled(replay)
            else:
                await self._settled(replay)
                follower.ended(returned)
        finally:
            follower.close()
            run.end_body()
            if self.calls:
                self.say(CallNews(self.item, end=True))

    async def _settled(self, replay: Replay) -> None:
        """Everything that was appended has been executed, or was skipped."""
        self._run.end_body()
        for run in (self._run, *replay.runs):
            for member in run.members():
                await member.settled()

    def cancel(self, reason: str) -> None:
        self._run.cancel(reason)

    def _open(self) -> ToldBranch:
        self._roots += 1
        return ToldBranch(self._backend, self, self._roots - 1)

    # ------------------------------------------------------------ tools

    async def _answers(self, branch: object, use: ToolUse, calls: Sequence[ToolCall]) -> list[ToolCall]:
        assert isinstance(branch, ToldBranch)
        name = (branch.root, branch.path)
        waiting = self._asked[name] = asyncio.get_running_loop().create_future()
        try:
            if not self.calls:
                asked = [AskedTool(call.name, dict(call.arguments)) for call in calls]
                self.say(Line(item=self.item, tools=asked, root=branch.root, path=branch.path))
            answers = await waiting
        finally:
            del self._asked[name]
        if answers is None or len(answers) != len(calls):
            raise ToolError(
                f"the client gave {'no' if answers is None else len(answers)} answers to {len(calls)} calls"
            )
        return [ToolCall(call.name, call.arguments, text) for call, text in zip(calls, answers, strict=True)]

    def told(self, news: NewsBody) -> bool:
        """Answers of the client arrived: False if nobody asked."""
        waiting = self._asked.get((news.root, news.path))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(news.answers)
        return True


class ToldBranch(TokenBranch):
    """Tells what its calls became. ``root``: its number among the roots of its run."""

    def __init__(self, backend: EngineBackend, run: ItemRun, root: int, path: tuple[int, ...] = ()) -> None:
        super().__init__(backend, path)
        self.root = root
        self._run = run

    def _child(self, path: tuple[int, ...]) -> ToldBranch:
        assert isinstance(self._backend, EngineBackend)
        return ToldBranch(self._backend, self._run, self.root, path)

    async def generate(self, call: GenCall, keep: bool, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        run = self._run
        if not run.calls:
            return await super().generate(call, keep, on_delta)

        def arrived(delta: Delta) -> None:
            on_delta(delta)
            if run.stream and delta.choice == 0:
                run.say(CallNews(run.item, self.root, self.path, delta=delta))

        try:
            outcomes = await super().generate(call, keep, arrived)
        except BaseException as error:
            self._failed(error)
            raise
        made = self._log[-1]
        assert isinstance(made, Made)
        news = CallNews(run.item, self.root, self.path, tuple(outcomes), made, diverged=self._at_cut(outcomes[0].usage))
        run.say(news)
        return outcomes

    async def score(self, choices: Sequence[str], unconditional: bool, call: GenCall) -> Scores:
        run = self._run
        try:
            scores = await super().score(choices, unconditional, call)
        except BaseException as error:
            if run.calls:
                self._failed(error)
            raise
        if run.calls:
            diverged = self._at_cut(scores.usage)
            run.say(CallNews(run.item, self.root, self.path, scores=scores, diverged=diverged))
        return scores

    def _at_cut(self, usage: object) -> str:
        cached, prompt = getattr(usage, "cached", 0), getattr(usage, "prompt", 0)
        return super().snippet(cached, min(cached + SNIPPET, prompt))

    def snippet(self, start: int, stop: int) -> str:
        return ""  # was told with the call

    def _failed(self, error: BaseException) -> None:
        run = self._run
        if isinstance(error, Exception):
            run.say(CallNews(run.item, self.root, self.path, failure=failure_of(error)))
        else:
            run.say(CallNews(run.item, self.root, self.path, cancelled=True))


# ---------------------------------------------------------------- what is told of variables


class Follower(Protocol):
    def ended(self, returned: object) -> None: ...
    def failed(self, error: Exception) -> None: ...
    def close(self) -> None: ...


class Quiet:
    """The branches have told everything."""

    def ended(self, returned: object) -> None:
        return

    def failed(self, error: Exception) -> None:
        return

    def close(self) -> None:
        return


class Variables:
    """Tells each variable of the root as soon as it is there, and the end."""

    def __init__(self, run: ItemRun, core: StateCore) -> None:
        self._run, self._core = run, core
        self._told = Budget(2 * MAX_ANSWER)
        self._tasks = [asyncio.ensure_future(self._watch())]

    def ended(self, returned: object) -> None:
        core = self._core
        if core.error is not None:
            self.failed(core.error)
            return
        names = [name for name in core.declared if isinstance(name, str)]
        try:
            values = {name: core.declared[name].value() for name in names}
            Budget(MAX_ANSWER).spend_value((values, returned))
        except Exception as error:
            self.failed(error)
            return
        metas = {name: core.declared[name].meta() for name in names}
        result = Result(core.log.text(), core.messages, values, metas, returned)
        self._run.say(Line(item=self._run.item, result=result))

    def failed(self, error: Exception) -> None:
        self._run.say(Line(item=self._run.item, error=failure_of(self._core.error or error)))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _watch(self) -> None:
        said: set[int] = set()
        while True:
            for name, slot in list(self._core.declared.items()):
                if isinstance(name, str) and id(slot) not in said:
                    said.add(id(slot))
                    self._tasks.append(asyncio.ensure_future(self._tell(name, slot)))
            await self._core.declarations.wait()

    async def _tell(self, name: str, slot: Slot) -> None:
        item = self._run.item
        with contextlib.suppress(Exception):  # the error is told with the item's end
            if self._run.stream and isinstance(slot, CallSlot):
                place = 0
                while True:
                    text, place = await slot.stream.read(place)
                    if not text:
                        break
                    self._told.spend(len(text))
                    self._run.say(Line(item=item, name=name, text=text))
            await slot.wait()
            value = slot.value()
            self._told.spend_value(value)
            self._run.say(Line(item=item, name=name, value=value))
