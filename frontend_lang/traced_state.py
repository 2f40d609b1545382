"""States that write down what is appended to them, while a body is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from . import expr as ir
from .choices import METHODS
from .core import StateCore
from .errors import ProgramError
from .graph import ForkOp, GenOp, JoinOp, ReadOp, Ref, RoleOp, ScopeOp, SelectOp, SetOp, TextOp, ToolsOp, ToolUseSpec
from .group import CONCATENATE, GATHER, PlainGroup
from .options import NAMES
from .state import State
from .symbols import Opaque, TraceError, refuse
from .tracer import Constant, Gathered, Known, Tracer, Value
from .where import Where, caller


class TraceCore:
    """Stands in for a StateCore."""

    def __init__(self, tracer: Tracer, number: int) -> None:
        self.tracer = tracer
        self.number = number
        self.declared: dict[object, Known] = {}
        self.own: dict[str, Known] = {}
        self.role: str | None = None
        self.scopes: list[str] = []
        self.joined = False

    def submit(self, expr: ir.Expr) -> None:
        if self.joined:
            raise ProgramError("this branch was joined: append to its parent instead", program=self.tracer.program)
        for part in expr.parts():
            self._add(part)

    def _add(self, part: ir.Expr) -> None:
        tracer, ops = self.tracer, self.tracer.ops
        match part:
            case ir.Text(value, where):
                self._text(tracer.symbols.parts(value, where), where)
            case ir.Gen():
                self._gen(part)
            case ir.Select(name, choices, method, _, _, where):
                named = [key for key, known in METHODS.items() if known is method]
                if not named:
                    refuse(tracer.program, "a choices_method of one's own is called")
                slot = tracer.slot(part)
                ops.append(SelectOp(self.number, slot, name, choices, named[0], where.line, tracer.file(where)))
                self._declare(name, part, Value(slot, f"variable {name!r}", choices=choices))
            case ir.RoleBegin(role, where):
                if self.role is not None:
                    raise ProgramError(f"role {role!r} begins ({where}) inside role {self.role!r}: roles do not nest")
                self.role = role
                ops.append(RoleOp(self.number, role, True))
            case ir.RoleEnd(role, where):
                if self.role != role:
                    raise ProgramError(f"role {role!r} ends ({where}), but is not open")
                self.role = None
                ops.append(RoleOp(self.number, role, False))
            case ir.ScopeBegin(name, _):
                slot = tracer.slot(part)
                ops.append(ScopeOp(self.number, name, True, slot))
                self._declare(name, part, Value(slot, f"variable {name!r}"))
            case ir.ScopeEnd(name, _):
                ops.append(ScopeOp(self.number, name, False))
            case ir.ShowTools(tools, where):
                specs = tuple(tool.spec for tool in tools)
                ops.append(ToolsOp(self.number, specs, where.line, tracer.file(where)))
            case _:
                refuse(tracer.program, f"{type(part).__name__} is appended, which runs in Python only,")

    def _text(self, parts: tuple[str | Ref, ...], where: Where) -> None:
        ops, tracer = self.tracer.ops, self.tracer
        place = len(ops) - 1
        while place >= tracer.frozen and isinstance(ops[place], ReadOp) and ops[place].slots:
            place -= 1  # a text that waits for what is read there anyway
        last = ops[place] if place >= tracer.frozen else None
        if isinstance(last, TextOp) and last.branch == self.number:
            ops[place] = TextOp(self.number, _merged((*last.parts, *parts)), last.line, last.file)
        elif parts:
            ops.append(TextOp(self.number, parts, where.line, tracer.file(where)))

    def _gen(self, gen: ir.Gen[Any]) -> None:
        tracer = self.tracer
        slot, use = tracer.slot(gen), gen.tools
        options = {name: value for name in NAMES if (value := getattr(gen.options, name)) is not None}
        constraint = gen.constraint
        tracer.ops.append(
            GenOp(
                self.number,
                slot,
                gen.name,
                options,
                None if constraint is None else constraint.spec,
                "" if constraint is None else constraint.what,
                constraint is not None and constraint.whole,
                gen.where.line,
                tracer.file(gen.where),
                None
                if use is None
                else ToolUseSpec(tuple(tool.spec for tool in use.tools), use.max_rounds, use.choice, use.errors),
            )
        )
        what = f"variable {gen.name!r}" if gen.name is not None else "a gen without a name"
        many = gen.options.n if gen.options.n is not None and gen.options.n > 1 else 0
        self._declare(gen.name, gen, Value(slot, what, many))

    def _declare(self, name: str | None, expr: ir.Expr, value: Known) -> None:
        self.declared[expr] = value
        if name is not None:
            self.declared[name] = self.own[name] = value

    def end(self) -> None:
        return

    @property
    def run(self) -> Any:
        refuse(self.tracer.program, "the running program is asked for something")


class TraceState(State[Any]):
    """What the body gets while it is traced."""

    def __init__(self, core: TraceCore) -> None:
        super().__init__(cast("StateCore", core))
        self._trace = core

    def __getitem__(self, name: Any) -> Any:
        core = self._trace
        if name not in core.declared:
            raise TraceError(
                f"program {core.tracer.program!r} has no variable {name!r} at {caller()}", program=core.tracer.program
            )
        value = core.declared[name]
        typed = isinstance(name, ir.Gen) and name.parse is not None
        return core.tracer.read(core.number, value, typed)

    def __setitem__(self, name: str, value: Any) -> None:
        core = self._trace
        core.tracer.ops.append(SetOp(core.number, name, described(value, core.tracer)))
        core.declared[name] = core.own[name] = Constant(value)

    def get_var(self, name: str) -> Any:
        return self[name]

    def __contains__(self, name: object) -> bool:
        refuse(self._trace.tracer.program, f"{name!r} in state is asked")

    def sync(self) -> None:
        self._trace.tracer.ops.append(ReadOp(self._trace.number))

    def text(self) -> str:
        refuse(self._trace.tracer.program, "text() is read")

    def messages(self) -> list[dict[str, str]]:
        refuse(self._trace.tracer.program, "messages() is read")

    def parsed(self, name: Any) -> Any:
        refuse(self._trace.tracer.program, f"parsed({name!r}) is read")

    def get_meta_info(self, name: Any) -> Any:
        refuse(self._trace.tracer.program, f"get_meta_info({name!r}) is read")

    def error(self) -> BaseException | None:
        refuse(self._trace.tracer.program, "error() is read")

    def fork(self, size: int = 1, position_ids_offset: object = None) -> PlainGroup:
        core, tracer = self._trace, self._trace.tracer
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"fork() makes 1 or more branches, got {size!r}")
        children = []
        for _ in range(size):
            child = TraceCore(tracer, tracer.branch())
            child.declared = dict(core.declared)
            child.role = core.role
            children.append(child)
        tracer.ops.append(ForkOp(core.number, tuple(child.number for child in children)))
        return TraceGroup(core, [TraceState(child) for child in children])

    def __del__(self) -> None:
        return

    def __repr__(self) -> str:
        return f"<traced state of {self._trace.tracer.program!r}>"


class TraceGroup(PlainGroup):
    def __init__(self, parent: TraceCore, states: Sequence[TraceState]) -> None:
        super().__init__(cast("StateCore", parent), states)
        self._trace = parent

    def join(self, mode: str = "gather_variable") -> None:
        cores = [cast("TraceState", state)._trace for state in self.states]
        if mode not in (*CONCATENATE, *GATHER):
            raise ValueError(f"join mode must be {GATHER[0]!r} or {CONCATENATE[0]!r}, got {mode!r}")
        kind = "concatenate" if mode in CONCATENATE else "gather"
        self._trace.tracer.ops.append(JoinOp(self._trace.number, tuple(core.number for core in cores), kind))
        for core in cores:
            core.joined = True
        if kind == "gather":
            for name in dict.fromkeys(name for core in cores for name in core.own):
                gathered = Gathered(tuple(core.own.get(name) for core in cores))
                self._trace.declared[name] = self._trace.own[name] = gathered

    def gather(self, name: str, errors: str = "raise") -> list[Any]:
        return [state[name] for state in self.states]


def described(value: Any, tracer: Tracer) -> Any:
    """A value that the body returns or sets, as JSON with references. Raises TraceError for what has no such form."""
    if type(value) is Opaque:
        return {"typed": value.ref}
    if isinstance(value, str):
        return {"text": tracer.symbols.parts(value, caller())}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [described(item, tracer) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[described(key, tracer), described(item, tracer)] for key, item in value.items()]}
    if value is None or isinstance(value, (bool, int, float)):
        return {"value": value}
    raise TraceError(
        f"program {tracer.program!r} cannot be compiled: it keeps or returns a {type(value).__name__} ({caller()})",
        program=tracer.program,
        where=caller(),
    )


def _merged(parts: Sequence[Any]) -> tuple[Any, ...]:
    merged: list[Any] = []
    for part in parts:
        if merged and isinstance(part, str) and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return tuple(merged)
