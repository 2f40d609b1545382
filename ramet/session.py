"""A whole runtime for one asyncio program: model files, scheduler and worker processes, and a client of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ramet.runtime.frontend.blocking import off_loop
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig, WorkerConfig
from ramet.runtime.protocol.errors import RametError

if TYPE_CHECKING:
    from ramet.runtime.frontend.chat import ChatTemplate
    from ramet.runtime.frontend.client import Client
    from ramet.runtime.launch import Launcher
    from ramet.runtime.store import ModelFolder
    from ramet.runtime.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class SessionOptions:
    """``model``: any name that ``ramet.runtime.store.resolve`` takes, or a folder that it has prepared. ``download``:
    fetch it if it is not there."""

    model: str | ModelFolder = "default"
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    download: bool = True
    progress: bool = True
    max_compiling: int | None = None
    """Constraints that may wait to be compiled, the next is refused (None: any number)."""


class Session:
    """``async with Session(options) as session``: everything is started on entry, and gone on exit.

    The processes end with this one, however it ends.
    """

    folder: ModelFolder
    tokenizer: Tokenizer
    launcher: Launcher
    client: Client

    def __init__(self, options: SessionOptions | None = None) -> None:
        self.options = options if options is not None else SessionOptions()
        self.failure = ""
        """Why the launcher has given the runtime up, with the last log lines; empty while it has not."""
        self.failed = asyncio.Event()

    async def __aenter__(self) -> Session:
        from ramet.runtime import store
        from ramet.runtime.launch import Launcher

        options = self.options
        if isinstance(options.model, store.ModelFolder):
            self.folder = options.model
        else:
            self.folder = await asyncio.to_thread(
                store.resolve, options.model, download=options.download, progress=options.progress
            )
        config = RuntimeConfig(
            model=str(self.folder.path), run_dir="", scheduler=options.scheduler, worker=options.worker
        )
        loop = asyncio.get_running_loop()
        self.launcher = Launcher(
            config, on_failure=lambda reason: loop.call_soon_threadsafe(self._runtime_failed, reason)
        )
        try:
            starting = loop.run_in_executor(None, self.launcher.start)
            # Interrupted meanwhile, nobody waits for it any more.
            starting.add_done_callback(lambda done: done.cancelled() or done.exception())
            # The processes take as long to come up as these to import: both at once.
            from ramet.runtime.frontend.client import Client
            from ramet.runtime.tokenizer import Tokenizer

            self.tokenizer = await asyncio.to_thread(Tokenizer.load, self.folder)
            await starting
            self.client = Client(
                self.launcher.config.frontend_endpoint, self.tokenizer, max_compiling=options.max_compiling
            )
            await self.client.start()
            self.client.warm()
        except BaseException:
            await asyncio.to_thread(self.launcher.stop)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.client.close()
        finally:
            await off_loop(self.launcher.stop)

    @cached_property
    def template(self) -> ChatTemplate:
        """Raises InvalidRequest for a base model, which has none; plain completions work all the same."""
        from ramet.runtime.frontend.chat import ChatTemplate

        return ChatTemplate(self.folder.meta)

    @property
    def context(self) -> int:
        """Longest branch in tokens."""
        return self.client.context

    def _runtime_failed(self, reason: str) -> None:
        """The launcher has given up a process: what is open or comes later ends with the reason, instead of
        waiting."""
        self.failure = reason
        self.failed.set()
        client: Client | None = getattr(self, "client", None)
        if client is not None:
            client.give_up(reason)


class BackgroundSession:
    """A session for ordinary code: it lives on an event loop in a thread of its own.

    ``with BackgroundSession(options) as background: background.submit(coroutine).result()``.
    """

    session: Session

    def __init__(self, options: SessionOptions | None = None) -> None:
        self.session = Session(options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ramet-session", daemon=True)

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def __enter__(self) -> BackgroundSession:
        self._thread.start()
        try:
            self.submit(self.session.__aenter__()).result()
        except BaseException as error:
            self._end()
            if isinstance(error, RametError):  # its message says it all: where in here it came up is of no use
                raise error.with_traceback(None) from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.submit(self.session.__aexit__(None, None, None)).result()
        finally:
            self._end()

    def _end(self) -> None:
        self.submit(_cancel_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
