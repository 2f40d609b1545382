"""`Engine`: the whole runtime behind one object, in the caller's own process as far as text is concerned.

The scheduler and the worker are processes that it starts, watches and ends; requests, streams and programs run on one
background thread. So it works from plain scripts, from threads, and inside a running event loop (Jupyter).
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ramet.frontend_lang.loop import LoopThread
from ramet.runtime.protocol.config import SchedulerConfig, WorkerConfig
from ramet.runtime.protocol.errors import RametError

if TYPE_CHECKING:
    from ramet.engine_backend import EngineBackend
    from ramet.runtime.store import ModelFolder
    from ramet.session import Session

T = TypeVar("T")


class Engine:
    """Prepares ``model`` (a name as in ``ramet pull``, or a prepared folder), starts it, and is then ready.

    ``options``: any field of ``SchedulerConfig`` or ``WorkerConfig`` (``kernels``, ``threads``, ``kv_tokens``,
    ``kv_dtype``, ``block_size``, ``chunk_tokens``, ``max_rows``, ``context``, ...). Use it as a context manager, or
    call ``shutdown()``; an engine that is forgotten ends with the process. Raises ModelNotFound and RametError.
    """

    backend: EngineBackend

    def __init__(
        self,
        model: str | ModelFolder | None = None,
        *,
        model_path: str | None = None,
        download: bool = True,
        progress: bool = True,
        **options: Any,
    ) -> None:
        from ramet.session import Session, SessionOptions

        if model is not None and model_path is not None:
            raise TypeError("give the model once: as model, or as model_path")
        scheduler, worker = split_options(options)
        name = model or model_path or "default"
        self._loop = LoopThread("ramet-engine")
        self._session = Session(SessionOptions(name, scheduler, worker, download, progress))
        self._closed = False
        self._lock = threading.Lock()
        try:
            self._loop.wait(self._session.__aenter__())
            self.backend = _make_backend(self._loop, self._session)
        except BaseException as error:
            self._closed = True
            self._loop.close()
            if isinstance(error, RametError):  # its message says it all: where in here it came up is of no use
                raise error.with_traceback(None) from None
            raise
        _open_engines.add(self)

    # ------------------------------------------------------------ life

    def shutdown(self) -> None:
        """End the processes and the background thread; open requests are cancelled. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _open_engines.discard(self)
        try:
            self._loop.wait(self._session.__aexit__(None, None, None), timeout=60.0)
        finally:
            self._loop.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        state = "shut down" if self._closed else "running"
        return f"<ramet.Engine {self._session.folder.meta.name!r}: {state}>"

    # ------------------------------------------------------------ control

    @property
    def session(self) -> Session:
        """The runtime underneath: model files, tokeniser, client. Its client lives on the loop of `submit`."""
        return self._session

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        """Run a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop.loop)

    def flush_cache(self) -> None:
        """Drop every cached block that no request uses."""
        self._loop.wait(self.backend.flush_cache())

    def stats(self) -> dict[str, object]:
        """Counters of the scheduler: blocks, requests, tokens."""
        return self._loop.wait(self.backend.server_info())

    get_server_info = stats

    # ------------------------------------------------------------ generate

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
        top_logprobs_num: int = 0,
        stream: bool = False,
    ) -> Any:
        """``{"text", "meta_info", "output_ids"}`` for a prompt, a list of them for a list; ``stream=True``: an iterator
        of such dicts with the text so far. The prompt is plain text: no chat template is applied."""
        from ramet.generate import make_batch, run_batch_of, stream_of

        batch = make_batch(prompt, input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num)
        if stream:
            return _pull(self._loop, stream_of(self.backend, batch.single()))
        return self._loop.wait(run_batch_of(self.backend, batch))

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
        top_logprobs_num: int = 0,
        stream: bool = False,
    ) -> Any:
        """`generate` for a running event loop; ``stream=True`` gives an async iterator."""
        from ramet.generate import make_batch, run_batch_of, stream_of

        batch = make_batch(prompt, input_ids, sampling_params, return_logprob, logprob_start_len, top_logprobs_num)
        if stream:
            return _pull_async(self._loop, stream_of(self.backend, batch.single()))
        return await self._loop.join(run_batch_of(self.backend, batch))


def _make_backend(loop: LoopThread, session: Session) -> EngineBackend:
    from ramet.engine_backend import EngineBackend

    return EngineBackend(loop, session.client, session.tokenizer, session.folder.meta)


def _pull(loop: LoopThread, source: AsyncIterator[Any]) -> Iterator[Any]:
    """An async iterator of the loop, read from another thread."""
    try:
        while True:
            try:
                yield loop.wait(_next(source))
            except StopAsyncIteration:
                return
    finally:
        if not loop.closed:
            loop.wait(_end(source))


async def _pull_async(loop: LoopThread, source: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        while True:
            try:
                yield await loop.join(_next(source))
            except StopAsyncIteration:
                return
    finally:
        await loop.join(_end(source))


async def _next(source: AsyncIterator[Any]) -> Any:
    return await source.__anext__()


async def _end(source: AsyncIterator[Any]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def split_options(options: Mapping[str, Any]) -> tuple[SchedulerConfig, WorkerConfig]:
    """Options by name into the two configurations. Raises TypeError naming what there is, or what has a wrong type."""
    scheduler: dict[str, Any] = {}
    worker: dict[str, Any] = {}
    for name, value in options.items():
        if name in SchedulerConfig.__struct_fields__:
            scheduler[name] = value
        elif name in WorkerConfig.__struct_fields__:
            worker[name] = value
        else:
            known = sorted({*SchedulerConfig.__struct_fields__, *WorkerConfig.__struct_fields__})
            raise TypeError(f"Engine() has no option {name!r}; it has: model, download, progress, {', '.join(known)}")
    try:
        return msgspec.convert(scheduler, SchedulerConfig), msgspec.convert(worker, WorkerConfig)
    except msgspec.ValidationError as error:
        raise TypeError(f"Engine(): {error}") from None


# ---------------------------------------------------------------- the engine of programs without a backend

_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_default_lock = threading.Lock()
_default: list[Engine] = []


def default_engine() -> Engine:
    """The engine that programs use when no backend was set: the default model, started once, ended with the process."""
    with _default_lock:
        if not _default or _default[0]._closed:
            print("ramet: no backend was set, starting the default model (ramet.Engine())", file=sys.stderr)
            _default[:] = [Engine()]
        return _default[0]


@atexit.register
def _shutdown_all() -> None:
    for engine in list(_open_engines):
        engine.shutdown()
