"""Running a graph: every op is appended at once; a text that quotes a value waits for it in its own branch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .async_state import AsyncGroup, AsyncState
from .choices import as_method
from .constraint import Constraint
from .core import StateCore
from .expr import Deferred, Expr, Gen, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, Text
from .graph import ChooseOp, ForkOp, GenOp, Graph, JoinOp, OpenOp, Ref, RoleOp, ScopeOp, SelectOp, TextOp
from .options import make_options
from .run import Run
from .slot import Slot
from .where import Where


class Replay:
    """One run of a graph. ``exprs``: the expressions of its slots, where the program was compiled here (their parsers
    make typed values). ``slots``: what the calls became."""

    def __init__(self, root: StateCore, graph: Graph, exprs: Sequence[Expr], arguments: Mapping[str, Any]) -> None:
        self.graph = graph
        self.slots: dict[int, Slot] = {}
        self.runs: list[Run] = []
        self.returns: Any = None
        """How the value that the body returns is made, once the end is known."""
        self._exprs = exprs
        self._arguments = {name: as_text(value) for name, value in arguments.items()}
        self._cores = {0: root}

    async def run(self) -> Any:
        """What the body returns. Raises the first error of a value that it returns or decides by."""
        block = self.graph.body
        try:
            while True:
                for op in block.ops:
                    if isinstance(op, ChooseOp):
                        break
                    self._append(op)
                else:
                    self.returns = block.returns
                    return await self._returned(block.returns)
                block = op.cases[str(await self._value(op.slot))]
        finally:
            for run in self.runs:
                run.end_body()
            self.runs.clear()

    async def _value(self, slot: int) -> Any:
        await self.slots[slot].wait()
        return self.slots[slot].value()

    # ------------------------------------------------------------ ops

    def _append(self, op: Any) -> None:
        match op:
            case TextOp():
                self._cores[op.branch].submit(self._text(op))
            case GenOp() | SelectOp():
                self._call(op)
            case RoleOp():
                where = self._where(0)
                self._cores[op.branch].submit(RoleBegin(op.role, where) if op.begin else RoleEnd(op.role, where))
            case ScopeOp():
                scope: Expr = ScopeBegin(op.name, self._where(0)) if op.begin else ScopeEnd(op.name, self._where(0))
                core = self._cores[op.branch]
                core.submit(scope)
                if op.begin:
                    self._keep(core, op.slot, scope)
            case OpenOp():
                run = Run(op.program, self._cores[0].run.backend)
                self.runs.append(run)
                self._cores[op.branch] = StateCore(run, run.backend.open())
            case ForkOp():
                children = AsyncState(self._cores[op.branch])._children(len(op.children))
                self._cores.update(zip(op.children, children, strict=True))
            case JoinOp():
                states = [AsyncState(self._cores[child]) for child in op.children]
                AsyncGroup(self._cores[op.branch], states).join(op.mode)

    def _text(self, op: TextOp) -> Expr:
        where = self._where(op.line)
        parts: list[str | tuple[Slot, int]] = []
        for part in op.parts:
            if isinstance(part, Ref):
                known = self._arguments[part.argument] if part.argument else (self.slots[part.slot], part.item)
                parts.append(known)
            else:
                parts.append(part)
        if all(isinstance(part, str) for part in parts):
            return Text("".join(str(part) for part in parts), where)
        return Deferred(tuple(parts), where)

    def _call(self, op: GenOp | SelectOp) -> None:
        where = self._where(op.line)
        local = self._exprs[op.slot] if op.slot < len(self._exprs) else None
        call: Expr
        if isinstance(op, SelectOp):
            call = Select(op.name, op.choices, as_method(op.method), where=where)
        else:
            constraint = None if op.constraint is None else Constraint(op.constraint, op.what, op.whole)
            parse = local.parse if isinstance(local, Gen) else None
            call = Gen(op.name, make_options(op.options), constraint, parse, where)
        core = self._cores[op.branch]
        core.submit(call)
        self._keep(core, op.slot, call)

    def _keep(self, core: StateCore, slot: int, call: Expr) -> None:
        self.slots[slot] = core.declared[call]
        if slot < len(self._exprs):
            core.declared[self._exprs[slot]] = self.slots[slot]

    def _where(self, line: int) -> Where:
        return Where(self.graph.file, line, self.graph.name)

    # ------------------------------------------------------------ the result

    async def _returned(self, spec: Any) -> Any:
        return await rebuild(spec, self._slot_value, self._arguments)

    async def _slot_value(self, ref: Ref, typed: bool) -> Any:
        slot = self.slots[ref.slot]
        await slot.wait()
        value = slot.typed() if typed else slot.value()
        return value[ref.item] if ref.item >= 0 else value


async def rebuild(spec: Any, value_of: Any, arguments: Mapping[str, str]) -> Any:
    """The value that a body returns, from its description in the graph."""
    if spec is None:
        return None
    ((kind, inner),) = spec.items()
    if kind == "value":
        return inner
    if kind == "typed":
        return await value_of(_ref(inner), True)
    if kind == "text":
        texts = [
            part
            if isinstance(part, str)
            else arguments[_ref(part).argument]
            if _ref(part).argument
            else str(await value_of(_ref(part), False))
            for part in inner
        ]
        return "".join(texts)
    if kind == "dict":
        return {await rebuild(k, value_of, arguments): await rebuild(v, value_of, arguments) for k, v in inner}
    items = [await rebuild(item, value_of, arguments) for item in inner]
    return items if kind == "list" else tuple(items)


def _ref(given: Any) -> Ref:
    return given if isinstance(given, Ref) else Ref(**{key: value for key, value in given.items() if key != "type"})


def as_text(value: Any) -> str:
    """An argument as it stands in an f-string."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"an argument must be a finite number or text, got {value!r}")
    return value if isinstance(value, str) else str(value)
