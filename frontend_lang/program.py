"""`@function`: a program, and the ways to run it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from .async_state import AsyncState
from .backend import Backend
from .batch import Batch
from .core import StateCore
from .defaults import as_backend, default_backend
from .options import NOTHING, RESERVED, Options, make_options
from .run import Run, current_run
from .shapes import Shapes
from .state import State
from .symbols import TraceError
from .tracer import Tracer, current_tracer

if TYPE_CHECKING:
    from .compiled import Compiled

R = TypeVar("R")
Body = Callable[..., Any]

_UNBOUND = object()
_VAR, _KEYWORDS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_CONTROL = frozenset(("backend", "stream", "use_thread", "sampling"))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a program, its arguments checked."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Options
    backend: Backend | None
    stream: bool


class Function(Generic[R]):
    """A program. ``body``'s first parameter is the state; ``bound``: arguments given by `bind`."""

    def __init__(self, body: Body, bound: Mapping[str, Any] | None = None, num_api_spec_tokens: int | None = None):
        self.body = body
        self.bound = dict(bound or {})
        self.num_api_spec_tokens = num_api_spec_tokens
        self._shapes: Shapes | None = None
        parameters = list(inspect.signature(body).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise TypeError(
                f"{body.__name__}() is no program: its first parameter must be the state, e.g. def f(s): ..."
            )
        self.signature = inspect.Signature(parameters[1:])
        self.is_async = inspect.iscoroutinefunction(body)
        functools.update_wrapper(self, body)
        self.name: str = body.__name__
        self.arg_names = [p.name for p in parameters[1:]]
        unknown = [name for name in self.bound if not self._takes(name)]
        if unknown:
            raise TypeError(
                f"{self.name}() has no parameter {unknown[0]!r} to bind; it has: {', '.join(self.arg_names)}"
            )

    def _takes(self, name: str) -> bool:
        parameters = self.signature.parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def bind(self, **arguments: Any) -> Function[R]:
        """The program with some arguments given; those of a call win. Raises TypeError for an unknown name."""
        return Function(self.body, {**self.bound, **arguments}, self.num_api_spec_tokens)

    # ------------------------------------------------------------ calls

    def prepare(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> Call:
        """Tell the program's own arguments from options of the run: a parameter of the program wins its name."""
        arguments: dict[str, Any] = {}
        options: dict[str, Any] = {}
        control: dict[str, Any] = {}
        parameters = self.signature.parameters
        for name, value in given.items():
            if name in parameters:
                arguments[name] = value
            elif name in _CONTROL:
                control[name] = value
            elif name in RESERVED:
                options[name] = value
            else:
                arguments[name] = value
        try:
            filled = self.signature.bind_partial(*args, **arguments)
            missing = {key: value for key, value in self.bound.items() if key not in filled.arguments}
            extra = {k: v for k, v in missing.items() if k not in arguments}
            self.signature.bind(*args, **{**extra, **arguments})
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}; its parameters: {', '.join(self.arg_names) or 'none'}") from None
        sampling = dict(control.get("sampling") or {})
        backend = control.get("backend")
        return Call(
            args,
            {**extra, **arguments},
            make_options({**options, **sampling}, f"{self.name}.run"),
            None if backend is None else as_backend(backend),
            bool(control.get("stream", False)),
        )

    def prepare_options(self, given: Mapping[str, Any]) -> Call:
        """A call without arguments, for a run whose arguments are wrong."""
        options = {k: v for k, v in given.items() if k in RESERVED}
        backend = given.get("backend")
        return Call((), {}, make_options(options), None if backend is None else as_backend(backend), False)

    def start(self, call: Call) -> State[R]:
        """A state with nothing in it yet."""
        outer = current_run.get()
        backend = call.backend or (outer.backend if outer is not None else default_backend())
        run = Run(self.name, backend, call.options, self.num_api_spec_tokens or 0, call.stream)
        if outer is not None:
            outer.add_inner(run)
        return State(StateCore(run, backend.open()))

    def compile(self, **constants: Any) -> Compiled[R]:
        """The program as a graph: the body runs now, with stand-ins for its arguments (``constants`` are given as they
        are) and for what is generated. Raises TraceError, naming the line, where it depends on such a value."""
        from .compiled import Compiled

        return Compiled.of(self, constants)

    def cache(self, backend: object | None = None) -> None:
        """Compute the part of the prompt that is the same in every run (what is appended before the first argument or
        call), so that it is in the cache when the runs come."""
        from .compiled import Compiled

        Compiled.of(self, {}).warm(None if backend is None else as_backend(backend))

    def run(self, *args: Any, **kwargs: Any) -> State[R]:
        """Run the program; ``kwargs`` are its arguments, sampling options for all its calls, ``backend=`` and
        ``stream=``. The body runs in the caller's thread (``stream=True``: in its own), and what it raises comes out
        here; generations may still be under way when this returns, and reading the state waits for them.
        """
        tracer = current_tracer.get()
        if tracer is not None:
            return self._traced(tracer, args, kwargs)
        call = self.prepare(args, kwargs)
        state = self.start(call)
        if self.is_async:
            loop = state._core.run.backend.loop
            work = self._run_body_async(state, call)
            if call.stream:
                asyncio.run_coroutine_threadsafe(_quietly(work), loop.loop)
            else:
                loop.wait(work)
        elif call.stream:
            context = contextvars.copy_context()
            thread = threading.Thread(
                target=context.run,
                args=(self._run_body_quietly, state, call),
                name=f"ramet-body-{self.name}",
                daemon=True,
            )
            thread.start()
        else:
            self._run_body(state, call)
        return state

    def __call__(self, *args: Any, **kwargs: Any) -> State[R]:
        """The same as `run`; inside another program, on that program's backend."""
        return self.run(*args, **kwargs)

    async def run_async(self, *args: Any, **kwargs: Any) -> State[R]:
        """`run` for a running event loop: returns the finished state. An ``async def`` body runs on the caller's loop,
        a plain body in a thread."""
        call = self.prepare(args, kwargs)
        state = self.start(call)
        if self.is_async:
            await self._run_body_async(state, call)
        else:
            await asyncio.to_thread(self._run_body, state, call)
        core = state._core
        if not core.run.backend.loop.closed:
            await core.run.backend.loop.join(core.settled())
        return state

    def run_batch(
        self,
        batch_kwargs: Iterable[Any],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        compile: bool | None = None,
        **options: Any,
    ) -> list[State[R]] | Iterator[State[R]]:
        """Run the program once per item (a dict of arguments, or a tuple of them) and return the finished states in
        order. An item that fails has its error in ``state.error()`` and raises it where it is read; the others go on.
        ``num_threads``: bodies in flight. ``generator_style``: an iterator that holds a few states at a time.
        ``compile``: the items run by the program's graph where that gives the same (see `compile`), and live
        otherwise; True: by the graph, or TraceError; False: live."""
        if compile is not None and "compile" in self.signature.parameters:
            options, compile = {**options, "compile": compile}, None
        states = Batch(self, options, num_threads, compile).run(batch_kwargs, progress_bar)
        return states if generator_style else list(states)

    @property
    def shapes(self) -> Shapes:
        """Graphs of the program, by what it is given."""
        if self._shapes is None:
            self._shapes = Shapes(self)
        return self._shapes

    def given(self, call: Call) -> dict[str, Any]:
        """Arguments of a call that are not bound or defaults, by name. Raises TraceError where some have no name."""
        values = self.signature.bind_partial(*call.args, **call.kwargs).arguments
        if any(self.signature.parameters[name].kind in (_VAR, _KEYWORDS) for name in values):
            raise TraceError(f"program {self.name!r} is not compiled by itself: it takes any number of arguments")
        return {name: value for name, value in values.items() if self.bound.get(name, _UNBOUND) is not value}

    def _traced(self, tracer: Tracer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> State[R]:
        """A call inside another program that is being compiled."""
        from .tracing import call_traced

        call = self.prepare(args, kwargs)
        if call.options is not NOTHING or call.backend is not None or call.stream:
            raise TypeError(f"{self.name}() inside a compiled program takes its own arguments only, no run options")
        return cast("State[R]", call_traced(self, tracer, call.args, call.kwargs))

    # ------------------------------------------------------------ bodies

    def _run_body(self, state: State[R], call: Call) -> None:
        run = state._core.run
        token = current_run.set(run)
        try:
            state._returned = self.body(state, *call.args, **call.kwargs)
        except BaseException as error:
            run.fail_body(error)
            raise
        finally:
            current_run.reset(token)
            run.end_body()

    def _run_body_quietly(self, state: State[R], call: Call) -> None:
        """The error is in the state: whoever reads it gets it."""
        try:
            self._run_body(state, call)
        except BaseException as error:
            if not isinstance(error, Exception):
                raise

    async def _run_body_async(self, state: State[R], call: Call) -> None:
        run = state._core.run
        token = current_run.set(run)
        try:
            body = cast("Callable[..., Awaitable[R]]", self.body)
            state._returned = await body(AsyncState(state._core), *call.args, **call.kwargs)
        except BaseException as error:
            run.fail_body(error)
            raise
        finally:
            current_run.reset(token)
            run.end_body()


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:
        return  # in the state: whoever reads it gets it


@overload
def function(body: Callable[..., Awaitable[R]]) -> Function[R]: ...
@overload
def function(body: Callable[..., R]) -> Function[R]: ...
@overload
def function(*, num_api_spec_tokens: int | None = None) -> Callable[[Callable[..., R]], Function[R]]: ...
def function(body: Body | None = None, *, num_api_spec_tokens: int | None = None) -> Any:
    """Make a program of a function whose first parameter is the state."""
    if body is None:
        return lambda inner: Function(inner, None, num_api_spec_tokens)
    if not callable(body):
        raise TypeError(f"@function decorates a function, got {body!r}")
    return Function(body, None, num_api_spec_tokens)
