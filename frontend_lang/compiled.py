"""`fn.compile(...)`: a program that needs its Python no more."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from .async_state import AsyncState
from .backend import Backend
from .core import StateCore
from .expr import Expr
from .graph import Block, GenOp, Graph, RoleOp, TextOp
from .options import Options
from .program import Function
from .replay import Replay, as_text, rebuild
from .slot import CallSlot, Slot

if TYPE_CHECKING:
    from .graph import Ref

R = TypeVar("R")


class Result(Protocol):
    """What a backend that runs whole graphs gives back: slots by number, variables of the root by name."""

    text: str
    messages: list[dict[str, str]]
    variables: dict[str, Any]
    metas: dict[str, Any]
    slots: dict[int, Any]
    returns: Any


@runtime_checkable
class RunsGraphs(Protocol):
    """A backend that runs a compiled program by itself, next to its scheduler."""

    async def run_graph(self, graph: Graph, arguments: Mapping[str, str], options: Options) -> Result: ...


class Compiled(Function[R], Generic[R]):
    """Runs like the program that it was made of: `run`, `run_batch`, `run_async`, ``stream=True``. No run needs a
    thread, and what does not depend on each other runs at the same time. ``graph`` is the program as data."""

    def __init__(self, graph: Graph, exprs: Sequence[Expr] = ()) -> None:
        self.graph = graph
        self._exprs = list(exprs)

        names = [*graph.arguments, *graph.defaults]

        async def body(s: AsyncState, *args: Any, **arguments: Any) -> Any:
            return await self._go(s, {**dict(zip(names, args, strict=False)), **arguments})

        body.__name__ = graph.name
        parameters = [inspect.Parameter("s", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        for name in graph.arguments:
            parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD))
        for name, value in graph.defaults.items():
            parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value))
        body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        super().__init__(body)

    @classmethod
    def of(cls, program: Function[R], constants: Mapping[str, Any]) -> Compiled[R]:
        """Raises TypeError for a constant that is no parameter, TraceError where the body cannot be traced."""
        from .tracing import trace

        for name in constants:
            if name not in program.signature.parameters:
                raise TypeError(f"{program.name}() has no parameter {name!r}; it has: {', '.join(program.arg_names)}")
        graph, exprs = trace(program, constants)
        return cls(graph, exprs)

    @classmethod
    def from_json(cls, text: str | bytes) -> Compiled[Any]:
        """A program from `to_json`'s text. Its values are text and JSON: parsers of pydantic models are not in it."""
        return Compiled(Graph.from_json(text))

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

    async def _go(self, state: AsyncState, arguments: Mapping[str, Any]) -> Any:
        core = state._core
        given = {**self.graph.defaults, **arguments}
        known = {name: as_text(value) for name, value in given.items()}
        backend = core.run.backend
        if isinstance(backend, RunsGraphs):
            return await core.run.backend.loop.join(self._elsewhere(backend, core, known))
        replay = Replay(core, self.graph, self._exprs, known)
        core.run.held.append(replay)
        return await core.run.backend.loop.join(replay.run())

    async def _elsewhere(self, backend: RunsGraphs, core: StateCore, arguments: dict[str, str]) -> Any:
        result = await backend.run_graph(self.graph, arguments, core.run.options)
        slots: dict[int, Slot] = {}
        for number, value in result.slots.items():
            expr = self._exprs[number] if number < len(self._exprs) else None
            slot = CallSlot(getattr(expr, "name", None), parse=getattr(expr, "parse", None))
            slot.stream.append(value if isinstance(value, str) else "")
            slot.resolve(value)
            slots[number] = slot
            if expr is not None:
                core.declared[expr] = slot
        for name, value in result.variables.items():
            named = CallSlot(name, parse=self._parser(name))
            named.stream.append(value if isinstance(value, str) else "")
            named.resolve(value, result.metas.get(name))
            core.declare(name, named)
        core.log.append(result.text)
        core.messages.extend(result.messages)

        async def value_of(ref: Ref, typed: bool) -> Any:
            slot = slots[ref.slot]
            value = slot.typed() if typed else slot.value()
            return value[ref.item] if ref.item >= 0 else value

        return await rebuild(result.returns, value_of, arguments)

    def _parser(self, name: str) -> Any:
        found = [getattr(expr, "parse", None) for expr in self._exprs if getattr(expr, "name", None) == name]
        return found[-1] if found else None
