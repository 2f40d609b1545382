"""`fn.compile(...)`: a program that needs its Python no more."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from .async_state import AsyncState
from .backend import Backend, Branch
from .core import StateCore
from .expr import Expr
from .graph import Block, GenOp, Graph, RoleOp, TextOp
from .options import Options
from .prepared import Prepared
from .program import Function
from .replay import Replay
from .tools import Tool, ToolCall, ToolUse, as_tools

R = TypeVar("R")


class RemoteRun(Protocol):
    """One run of a graph that happens elsewhere. Its branches are told what their calls became."""

    async def answer_tools(self, branch: Branch, use: ToolUse, calls: Sequence[ToolCall], /) -> list[ToolCall]:
        """See Run."""

    def open(self) -> Branch:
        """The next root: of the program itself, then of those that it calls, in their order."""

    def cancel(self) -> None:
        """Idempotent; on the backend's loop."""


@runtime_checkable
class RunsGraphs(Protocol):
    """A backend that runs compiled programs by itself, next to its scheduler."""

    def start_graph(
        self, graph: Graph, arguments: Mapping[str, str], options: Options, streamed: bool
    ) -> RemoteRun: ...


class Compiled(Function[R], Generic[R]):
    """Runs like the program that it was made of: `run`, `run_batch`, `run_async`, ``stream=True``. No run needs a
    thread, and what does not depend on each other runs at the same time. ``graph`` is the program as data."""

    def __init__(
        self, graph: Graph, exprs: Sequence[Expr] = (), tools: Sequence[Callable[..., object] | Tool] = ()
    ) -> None:
        self.graph = graph
        self._prepared = Prepared(graph, exprs, {tool.name: tool for tool in (as_tools(tools) if tools else ())})

        names = [*graph.arguments, *graph.defaults]

        def body(s: AsyncState, *args: Any, **arguments: Any) -> Awaitable[Any]:
            given = {**graph.defaults, **dict(zip(names, args, strict=False)), **arguments}
            known = {name: str(value) for name, value in given.items()}
            return s._core.run.backend.loop.join(self._replay(s._core, known))

        body.__name__ = graph.name
        parameters = [inspect.Parameter("s", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        for name in graph.arguments:
            parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD))
        for name, value in graph.defaults.items():
            parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value))
        body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        super().__init__(body)
        self.is_async = True  # the body makes an awaitable

    @classmethod
    def of(
        cls, program: Function[R], constants: Mapping[str, Any], texts: Mapping[str, bool] | None = None
    ) -> Compiled[R]:
        """``texts``: see `trace`. Raises TypeError for a constant that is no parameter, TraceError where the body
        cannot be traced."""
        from .tracing import trace

        for name in constants:
            if name not in program.signature.parameters:
                raise TypeError(f"{program.name}() has no parameter {name!r}; it has: {', '.join(program.arg_names)}")
        graph, exprs = trace(program, constants, texts)
        return cls(graph, exprs)

    @classmethod
    def from_json(cls, text: str | bytes, tools: Sequence[Callable[..., object] | Tool] = ()) -> Compiled[Any]:
        """A program from `to_json`'s text. Its values are text and JSON: parsers of pydantic models are not in it, nor
        are the functions behind its ``tools``."""
        return Compiled(Graph.from_json(text), tools=tools)

    def to_json(self) -> str:
        return self.graph.to_json()

    def static_prefix(self) -> list[TextOp | RoleOp]:
        """The ops that every run begins with, whatever its arguments: constant text and roles."""
        prefix: list[TextOp | RoleOp] = []
        for op in self.graph.body.ops:
            if isinstance(op, RoleOp) and op.branch == 0:
                prefix.append(op)
            elif isinstance(op, TextOp) and op.branch == 0:
                parts = list(itertools.takewhile(lambda part: isinstance(part, str), op.parts))
                if parts:
                    prefix.append(TextOp(0, tuple(parts), op.line))
                if len(parts) < len(op.parts):
                    break
            else:
                break
        return prefix

    def warm(self, backend: Backend | None = None) -> None:
        """Compute the static prefix on a backend."""
        prefix = self.static_prefix()
        if any(isinstance(op, TextOp) for op in prefix):
            ops = (*prefix, GenOp(0, 0, options={"max_tokens": 0}))
            Compiled(Graph(self.graph.name, self.graph.file, (), Block(ops))).run(backend=backend).sync()

    async def _replay(self, core: StateCore, arguments: Mapping[str, str]) -> Any:
        run, backend = core.run, core.run.backend
        elsewhere: RemoteRun | None = None
        if isinstance(backend, RunsGraphs):
            elsewhere = backend.start_graph(self.graph, arguments, run.options, run.streamed)
            run.on_cancel, run.answer_tools = elsewhere.cancel, elsewhere.answer_tools
            core.branch = elsewhere.open()
        replay = Replay(core, self._prepared, arguments, None if elsewhere is None else elsewhere.open)
        run.held.append(replay)
        return await replay.run()
