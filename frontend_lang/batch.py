"""Many runs of one program: a sliding window over the items, in order; compiled where nobody can tell."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sized
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from .core import StateCore
from .loop import LoopThread
from .run import Run
from .shapes import log
from .state import State
from .symbols import TraceError

if TYPE_CHECKING:
    from .program import Call, Function

R = TypeVar("R")
AUTO_THREADS = 64
AUTO_COROUTINES = 1000


@dataclass(frozen=True)
class Batch(Generic[R]):
    """``compiled``: True: only so, else TraceError; False: never; None: where the program allows it."""

    program: Function[R]
    options: Mapping[str, Any]
    num_threads: int | str
    compiled: bool | None

    def __post_init__(self) -> None:
        count = self.num_threads
        if count != "auto" and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ValueError(f"num_threads must be 'auto' or a number of 1 or more, got {count!r}")

    def limit(self, is_async: bool) -> int:
        """Bodies in flight."""
        if isinstance(self.num_threads, int):
            return self.num_threads
        return AUTO_COROUTINES if is_async else AUTO_THREADS

    def run(self, items: Iterable[Any], progress_bar: bool) -> Iterator[State[R]]:
        """Yields the finished states in order."""
        total = len(items) if isinstance(items, Sized) else None
        return _run(self, items, _Bar(total) if progress_bar else None)


def _run(batch: Batch[R], items: Iterable[Any], bar: _Bar | None) -> Iterator[State[R]]:
    name = f"ramet-{batch.program.name}"
    pool = ThreadPoolExecutor(batch.limit(False), thread_name_prefix=name)  # a thread begins when there is work for it
    start = _Start(batch, pool, _Gate(batch.limit(True)), bar)
    window: deque[tuple[State[R], _Running | None]] = deque()
    source = iter(items)
    try:
        exhausted = False
        while window or not exhausted:
            # Results wait for their turn, so that a slow item does not idle the rest: twice the bodies in flight may
            # be open.
            while not exhausted and len(window) < 2 * batch.limit(start.last_is_async):
                try:
                    item = next(source)
                except StopIteration:
                    exhausted = True
                    break
                window.append(start(item))
            if window:
                state, running = window.popleft()
                if running is not None:
                    running.wait()
                yield state
    finally:
        for state, running in window:
            if running is not None:
                running.cancel()
            state._core.run.cancel("its batch was given up")
        pool.shutdown(wait=True, cancel_futures=True)
        if bar is not None:
            bar.close()


class _Running(Protocol):
    """A body under way."""

    def wait(self) -> None:
        """To its end; raises what no state can hold (an interrupt, the end of the backend)."""

    def cancel(self) -> None: ...


class _InThread:
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()

    def cancel(self) -> None:
        self._future.cancel()


class _OnLoop:
    """A coroutine of the backend's loop. All of a batch share one condition: a future of its own for each would cost
    more than the rest of a small program."""

    __slots__ = ("_changed", "_done", "_error", "_loop", "_task", "_then")

    def __init__(
        self,
        loop: LoopThread,
        work: Coroutine[Any, Any, None],
        changed: threading.Condition,
        then: Callable[[], None] | None,
    ) -> None:
        self._loop, self._changed, self._then = loop, changed, then
        self._task: asyncio.Task[None] | None = None
        self._done = False
        self._error: BaseException | None = None
        if loop.closed:
            work.close()
            self._done, self._error = True, RuntimeError("the backend of this program was shut down")
        else:
            loop.call(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.start(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = CancelledError() if task.cancelled() else task.exception()
        with self._changed:
            self._task, self._done, self._error = None, True, error
            self._changed.notify_all()
        if self._then is not None:
            self._then()

    def wait(self) -> None:
        with self._changed:
            while not self._done:
                self._changed.wait()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        if not self._loop.closed:
            self._loop.call(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _Gate:
    """Bounds the coroutines of a batch; made on the loop that uses it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._semaphore: asyncio.Semaphore | None = None

    def get(self) -> asyncio.Semaphore:
        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self._limit)
        return self._semaphore


class _Start(Generic[R]):
    """Sets one item going."""

    def __init__(self, batch: Batch[R], pool: ThreadPoolExecutor, gate: _Gate, bar: _Bar | None) -> None:
        self._batch, self._pool, self._gate, self._bar = batch, pool, gate, bar
        self._changed = threading.Condition()
        self._said = False
        self.last_is_async = batch.program.is_async

    def __call__(self, item: Any) -> tuple[State[R], _Running | None]:
        program, options = self._batch.program, dict(self._batch.options)
        args, kwargs = _arguments(item)
        try:
            call = program.prepare(args, {**options, **kwargs})
        except (TypeError, ValueError) as error:
            return self._refused(error, options), None
        program, call = self._way(program, call)
        self.last_is_async = program.is_async
        state = program.start(call)
        advance = None if self._bar is None else self._bar.advance
        if program.is_async:
            work = _one_async(program, state, call, self._gate)
            return state, _OnLoop(state._core.run.backend.loop, work, self._changed, advance)
        context = contextvars.copy_context()
        future = self._pool.submit(context.run, _one, program, state, call)
        if advance is not None:
            future.add_done_callback(lambda _: advance())
        return state, _InThread(future)

    def _refused(self, error: Exception, options: Mapping[str, Any]) -> State[R]:
        state = self._batch.program.start(self._batch.program.prepare_options(options))
        state._core.run.fail_body(error)
        state._core.run.end_body()
        if self._bar is not None:
            self._bar.advance()
        return state

    def _way(self, program: Function[R], call: Call) -> tuple[Function[R], Call]:
        """Live, or by a graph."""
        forced = self._batch.compiled
        if program.is_async or forced is False or (forced is None and program.num_api_spec_tokens):
            if forced:
                raise TraceError(
                    f"program {program.name!r} cannot be compiled: it is `async def`", program=program.name
                )
            return program, call
        try:
            given = program.given(call)
            compiled, taken = program.shapes.find(given, trusted=forced is True)
        except TraceError as error:
            if forced:
                raise
            if not self._said:
                self._said = True
                log.info("a batch runs live: %s", error)
            return program, call
        return compiled, replace(call, args=(), kwargs=taken)


def _arguments(item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(item, Mapping):
        return (), dict(item)
    if isinstance(item, (tuple, list)):
        return tuple(item), {}
    return (item,), {}


def _one(program: Function[R], state: State[R], call: Call) -> None:
    program._run_body_quietly(state, call)
    core = state._core
    if not core.run.backend.loop.closed:
        core.run.backend.loop.wait(_finished(core))


async def _one_async(program: Function[R], state: State[R], call: Call, gate: _Gate) -> None:
    async with gate.get():
        with contextlib.suppress(Exception):  # in the state: whoever reads it gets it
            await program._run_body_async(state, call)
        await _finished(state._core)


async def _finished(core: StateCore) -> None:
    run: Run = core.run
    for member in run.members():
        await member.settled()


class _Bar:
    """A progress bar on stderr."""

    def __init__(self, total: int | None) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total)

    def advance(self) -> None:
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()
