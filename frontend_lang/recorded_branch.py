"""The branch of a compiled program that runs elsewhere: its text is kept here, what its calls became arrives.

The same code makes a state out of it as for a program that runs here: texts, messages, typed values and errors cannot
differ. Ids are encoded when somebody asks for them.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from .backend import Delta, GenCall, Outcome, Piece, Scores, TokenBackend
from .token_branch import Made, TokenBranch

BranchName = tuple[int, tuple[int, ...]]
"""(which root of the program, the forks that lead from it to the branch)."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A generation that ended. ``made``: what the branch goes on with; ``diverged``: see CallRecord."""

    outcomes: tuple[Outcome, ...]
    made: Made
    diverged: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    scores: Scores
    diverged: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """``error`` None: it was cancelled there, for a reason that is known here too (a time limit, a sibling's error)."""

    error: Exception | None


News = Delta | Generated | Scored | Failed


class Feed:
    """What arrives of one run, by branch; in a branch everything comes in order. Loop thread only."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[News]] = {}
        self._waiting: dict[Hashable, asyncio.Future[None]] = {}
        self._error: Exception | None = None

    def put(self, name: BranchName, news: News) -> None:
        self._queues.setdefault(name, deque()).append(news)
        waiting = self._waiting.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nothing more will come."""
        self._error = error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(None)

    async def next(self, name: BranchName) -> News:
        while not (queue := self._queues.get(name)):
            if self._error is not None:
                raise self._error
            self._waiting[name] = asyncio.get_running_loop().create_future()
            await self._waiting[name]
        return queue.popleft()


class RecordedBranch(TokenBranch):
    """See the module. ``root``: its number among the roots of the run."""

    def __init__(self, backend: TokenBackend, feed: Feed, root: int, path: tuple[int, ...] = ()) -> None:
        super().__init__(backend, path)
        self.name: BranchName = (root, path)
        self._feed = feed
        self._made: list[tuple[Piece, ...] | tuple[int, ...]] = []
        """In order; an empty one stands for an id that was taken back."""
        self._diverged = ""

    def _child(self, path: tuple[int, ...]) -> RecordedBranch:
        child = RecordedBranch(self._backend, self._feed, self.name[0], path)
        child._made = list(self._made)
        return child

    async def _encode(self) -> None:
        if self._pending:
            self._made.append(tuple(self._pending))
            self._pending = []

    def _take_back(self) -> None:
        self._made.append(())

    def _extend(self, ids: Sequence[int]) -> None:
        if ids:
            self._made.append(tuple(ids))

    async def token_ids(self) -> Sequence[int]:
        while self._made:
            part = self._made.pop(0)
            if not part:
                self.ids.pop()
            pieces = [item for item in part if isinstance(item, Piece)]
            encoded = await self._backend.encode(pieces, start=not self.ids) if pieces else part
            self.ids.extend(array("i", [item for item in encoded if isinstance(item, int)]))
        return self.ids

    async def generate(self, call: GenCall, keep: bool, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        streamed = False
        while isinstance(news := await self._next(call), Delta):
            streamed = True
            on_delta(news)
        if not isinstance(news, Generated):
            raise TypeError(f"a generation was expected of branch {self.name}, got {type(news).__name__}")
        await self._encode()
        self._blank = False
        self._diverged = news.diverged
        if not streamed:
            for index, outcome in enumerate(news.outcomes):
                if outcome.text or outcome.logprobs:
                    on_delta(Delta(index, outcome.text, outcome.logprobs))
        if news.made.instead:
            self._take_back()
        self._extend(news.made.ids)
        self._log.append(news.made)
        if news.made.leftover:
            self._pending.append(Piece(news.made.leftover))
        return list(news.outcomes)

    async def score(self, choices: Sequence[str], unconditional: bool, call: GenCall) -> Scores:
        news = await self._next(call)
        if not isinstance(news, Scored):
            raise TypeError(f"scores were expected of branch {self.name}, got {type(news).__name__}")
        self._diverged = news.diverged
        return news.scores

    async def _next(self, call: GenCall) -> News:
        news = await self._feed.next(self.name)
        if not isinstance(news, Failed):
            return news
        if news.error is not None:
            raise news.error
        if call.timeout_s is not None:
            raise asyncio.TimeoutError
        # The same reason cancels this call here, any moment.
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    def snippet(self, start: int, stop: int) -> str:
        return self._diverged
