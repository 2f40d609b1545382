"""Many runs of one program: a sliding window over the items, in order."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from .core import StateCore
from .run import Run
from .state import State

if TYPE_CHECKING:
    from .program import Call, Function

R = TypeVar("R")
AUTO_THREADS = 64
AUTO_COROUTINES = 1000


def run_batch(
    program: Function[R],
    items: Iterable[Any],
    options: Mapping[str, Any],
    num_threads: int | str,
    progress_bar: bool,
) -> Iterator[State[R]]:
    """Yields the finished states in order; at most ``num_threads`` bodies are in flight."""
    limit = _limit(program, num_threads)
    total = len(items) if isinstance(items, Sized) else None
    return _run(program, items, dict(options), limit, _Bar(total) if progress_bar else None)


def _limit(program: Function[Any], num_threads: int | str) -> int:
    if num_threads == "auto":
        return AUTO_COROUTINES if program.is_async else AUTO_THREADS
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ValueError(f"num_threads must be 'auto' or a number of 1 or more, got {num_threads!r}")
    return num_threads


def _run(
    program: Function[R], items: Iterable[Any], options: dict[str, Any], limit: int, bar: _Bar | None
) -> Iterator[State[R]]:
    pool = None if program.is_async else ThreadPoolExecutor(limit, thread_name_prefix=f"ramet-{program.name}")
    window: deque[tuple[State[R], Future[None] | None]] = deque()
    source = iter(items)
    # Results wait for their turn, so that a slow item does not idle the rest: twice the bodies in flight may be open.
    width = 2 * limit
    gate = _Gate(limit)
    try:
        exhausted = False
        while window or not exhausted:
            while not exhausted and len(window) < width:
                try:
                    item = next(source)
                except StopIteration:
                    exhausted = True
                    break
                window.append(_start(program, item, options, pool, gate, bar))
            if window:
                state, future = window.popleft()
                if future is not None:
                    future.result()
                yield state
    finally:
        for state, future in window:
            if future is not None:
                future.cancel()
            state._core.run.cancel("its batch was given up")
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        if bar is not None:
            bar.close()


class _Gate:
    """Bounds the coroutines of a batch; made on the loop that uses it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._semaphore: asyncio.Semaphore | None = None

    def get(self) -> asyncio.Semaphore:
        if self._semaphore is None:
            self._semaphore = asyncio.Semaphore(self._limit)
        return self._semaphore


def _start(
    program: Function[R],
    item: Any,
    options: dict[str, Any],
    pool: ThreadPoolExecutor | None,
    gate: _Gate,
    bar: _Bar | None,
) -> tuple[State[R], Future[None] | None]:
    args, kwargs = _arguments(item)
    try:
        call = program.prepare(args, {**options, **kwargs})
    except (TypeError, ValueError) as error:
        call = program.prepare_options(options)
        state = program.start(call)
        state._core.run.fail_body(error)
        state._core.run.end_body()
        if bar is not None:
            bar.advance()
        return state, None
    state = program.start(call)
    if pool is not None:
        context = contextvars.copy_context()
        future = pool.submit(context.run, _one, program, state, call)
    else:
        loop = state._core.run.backend.loop.loop
        future = asyncio.run_coroutine_threadsafe(_one_async(program, state, call, gate), loop)
    if bar is not None:
        future.add_done_callback(lambda _: bar.advance())
    return state, future


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
