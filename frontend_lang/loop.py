"""One background thread with an asyncio loop: where all states of a backend are executed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_SHUT = "the backend of this program was shut down"


class LoopThread:
    """Starts at once; ``close()`` cancels what still runs and joins the thread. It never holds an exit back."""

    def __init__(self, name: str = "ramet-loop") -> None:
        self._own = True
        self._kept: set[asyncio.Task[Any]] = set()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def current(cls) -> LoopThread:
        """The running event loop and its thread, which are someone else's: `close` leaves them alone."""
        adopted = cls.__new__(cls)
        adopted.loop = asyncio.get_running_loop()
        adopted._thread = threading.current_thread()
        adopted._own = False
        adopted._kept = set()
        return adopted

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def inside(self) -> bool:
        """The caller runs on this loop's thread."""
        return threading.current_thread() is self._thread

    @property
    def closed(self) -> bool:
        return self.loop.is_closed() or not self._thread.is_alive()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function`` on the loop: at once if the caller is on it, else as soon as it is free."""
        if self.inside:
            function(*args)
        else:
            self.loop.call_soon_threadsafe(function, *args)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that lives until it is done, whoever has lost sight of it: the loop itself holds tasks weakly. On the
        loop only."""
        task = self.loop.create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for it, from any other thread."""
        if self.inside:
            work.close()
            raise RuntimeError("this would wait for its own event loop: inside `async def`, use `await`")
        if self.closed:
            work.close()
            raise RuntimeError(_SHUT)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise RuntimeError(_SHUT) from None
        except BaseException:
            future.cancel()
            raise

    def join(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """A coroutine that runs on the loop, to be awaited on this loop or any other."""
        return work if self.inside else asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def close(self) -> None:
        """Idempotent."""
        if self.closed or not self._own:
            return
        if self.inside:
            raise RuntimeError("cannot close an event loop from within itself")
        try:
            self.wait(self._cancel_all(), timeout=10.0)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(10.0)
            if not self.loop.is_running():
                self.loop.close()

    async def _cancel_all(self) -> None:
        mine = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not mine]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
