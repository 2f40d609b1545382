"""Tracing: the body runs once per way through it, on states that write down what is appended."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any

from . import expr as ir
from .graph import Block, ChooseOp, Graph, OpenOp
from .symbols import TraceError, refusals, refuse
from .traced_state import TraceCore, TraceState, described
from .tracer import Shared, Tracer, Undecided, current_tracer
from .where import Where

if TYPE_CHECKING:
    from .program import Function

MAX_WAYS = 64
"""Ways through a body that are traced (every look at a select's result doubles them, or more)."""


def trace(
    program: Function[Any], constants: Mapping[str, Any], texts: Mapping[str, bool] | None = None
) -> tuple[Graph, list[ir.Expr]]:
    """The graph of a program, and the expressions of its slots. ``texts``: its arguments, and whether each is a text
    (None: all without a default or with a text as such, as texts). Raises TraceError."""
    name = program.name
    if program.is_async:
        raise TraceError(
            f"program {name!r} cannot be compiled: it is `async def`; write it as a plain def", program=name
        )
    raised: list[TraceError] = []
    token = refusals.set(raised)
    try:
        shared = Shared()
        body = _Ways(program, constants, texts, "", shared).from_here({}, 0)
        stuffing = " ".join(["7 z Z\n", *_words(program.body.__code__)])
        again = _Ways(program, constants, texts, stuffing, Shared()).from_here({}, 0)
    finally:
        refusals.reset(token)
    if raised:  # the body has caught it
        raise raised[0]
    if body != again:
        raise TraceError(
            f"program {name!r} cannot be compiled: it looks at the characters of a text that holds values known only "
            "at run time, or it does not do the same each time",
            program=name,
        )
    given = {**program.bound, **constants}
    parameters = program.signature.parameters.values()
    if texts is not None:
        return Graph(name, program.body.__code__.co_filename, tuple(texts), body), shared.exprs
    arguments = tuple(p.name for p in parameters if p.name not in given and p.default is p.empty)
    defaults = {p.name: p.default for p in parameters if p.name not in given and isinstance(p.default, str)}
    return Graph(name, program.body.__code__.co_filename, arguments, body, defaults), shared.exprs


def _words(code: CodeType) -> list[str]:
    """Every string that the code holds: what it could look for in a text."""
    words: list[str] = []
    for constant in code.co_consts:
        if isinstance(constant, str):
            words.append(constant)
        elif isinstance(constant, (tuple, frozenset)):
            words += [item for item in constant if isinstance(item, str)]
        elif isinstance(constant, CodeType):
            words += _words(constant)
    return words


class _Ways:
    """All ways through one body."""

    def __init__(
        self,
        program: Function[Any],
        constants: Mapping[str, Any],
        texts: Mapping[str, bool] | None,
        stuffing: str,
        shared: Shared,
    ) -> None:
        self._program, self._constants, self._texts = program, constants, texts
        self._stuffing, self._shared = stuffing, shared
        self._left = MAX_WAYS

    def from_here(self, decided: Mapping[int, str], skip: int) -> Block:
        """What follows the first ``skip`` ops, after these decisions."""
        name = self._program.name
        self._left -= 1
        if self._left < 0:
            raise TraceError(
                f"program {name!r} cannot be compiled: there are more than {MAX_WAYS} ways through it", program=name
            )
        file = self._program.body.__code__.co_filename
        tracer = Tracer(name, file, decided, self._stuffing, self._shared)
        token = current_tracer.set(tracer)
        try:
            arguments = _symbolic(self._program, tracer, self._constants, self._texts)
            returned = call_traced(self._program, tracer, (), arguments, root=True)
            if tracer.look is not None:
                raise tracer.look
            return Block(tuple(tracer.ops[skip:]), described(returned, tracer))
        except Undecided as look:
            ops = tuple(tracer.ops)
            cases = {one: self.from_here({**decided, look.slot: one}, len(ops)) for one in look.choices}
            return Block((*ops[skip:], ChooseOp(look.slot, cases)))
        finally:
            current_tracer.reset(token)


def _symbolic(
    program: Function[Any], tracer: Tracer, constants: Mapping[str, Any], texts: Mapping[str, bool] | None
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    known = {**program.bound, **constants}
    for parameter in program.signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        name = parameter.name
        if texts is not None and name in texts:
            values[name] = tracer.symbols.argument(name, texts[name])
        elif name in known:
            # A body that changes a list that it was given must not do so for the runs to come.
            values[name] = copy.deepcopy(known[name]) if isinstance(known[name], (list, dict, set)) else known[name]
        elif parameter.default is parameter.empty or isinstance(parameter.default, str):
            values[name] = tracer.symbols.argument(name, True)
        else:
            values[name] = parameter.default
    return values


def call_traced(
    program: Function[Any], tracer: Tracer, args: tuple[Any, ...], kwargs: Mapping[str, Any], root: bool = False
) -> Any:
    """Run a body on a traced state: its result for the root, the state for a program called inside another."""
    if program.is_async:
        refuse(tracer.program, f"{program.name}(), which is `async def`, is called")
    core = TraceCore(tracer, tracer.branch())
    state = TraceState(core)
    if not root:
        tracer.ops.append(OpenOp(core.number, program.name))
    try:
        result = program.body(state, *args, **kwargs)
    except (TraceError, Undecided):
        raise
    except Exception as error:
        where = _line_of(error, program)
        raise TraceError(
            f"program {program.name!r} cannot be compiled: {type(error).__name__}: {error} at {where}",
            program=program.name,
            where=where,
            cause=error,
        ) from error
    if root:
        return result
    state._returned = result
    return state


def _line_of(error: BaseException, program: Function[Any]) -> Where:
    file = inspect.getsourcefile(program.body)
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return Where(file or "", line, program.name)
