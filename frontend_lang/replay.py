"""Running a graph: every op is appended at once; a text that quotes a value waits for it in its own branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .async_state import AsyncGroup, AsyncState
from .backend import Branch
from .choices import as_method
from .constraint import Constraint
from .core import StateCore
from .expr import Deferred, Expr, Gen, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, ShowTools, Text
from .graph import (
    ChooseOp,
    ForkOp,
    GenOp,
    Graph,
    JoinOp,
    OpenOp,
    ReadOp,
    Ref,
    RoleOp,
    ScopeOp,
    SelectOp,
    SetOp,
    TextOp,
    ToolsOp,
    ToolSpec,
)
from .options import make_options
from .run import Run
from .slot import DerivedSlot, Slot
from .tools import Tool, ToolUse
from .where import Where


class Replay:
    """One run of a graph. ``exprs``: the expressions of its slots, where the program was compiled here (their parsers
    make typed values). ``tools``: the functions behind its tools, by name. ``open_branch``: makes the branches of
    programs that are called inside (None: the backend's). ``slots``: what the calls became."""

    def __init__(
        self,
        root: StateCore,
        graph: Graph,
        exprs: Sequence[Expr],
        arguments: Mapping[str, str],
        tools: Mapping[str, Tool] | None = None,
        open_branch: Callable[[], Branch] | None = None,
    ) -> None:
        self.graph = graph
        self.slots: dict[int, Slot] = {}
        self.runs: list[Run] = []
        self._exprs = exprs
        self._arguments = arguments
        self._cores = {0: root}
        self._reads: list[tuple[ReadOp, dict[object, Slot]]] = []
        self._tools = tools or {}
        self._open = open_branch or root.run.backend.open

    async def run(self) -> Any:
        """What the body returns. Raises the first error of what it reads."""
        block = self.graph.body
        try:
            while True:
                choose: ChooseOp | None = None
                for op in block.ops:
                    if isinstance(op, ChooseOp):
                        choose = op
                    elif isinstance(op, ReadOp):
                        self._reads.append((op, dict(self._cores[0].declared)))
                    else:
                        self._append(op)
                await self._read()
                if choose is None:
                    return self._rebuilt(block.returns)
                block = choose.cases[str(self.slots[choose.slot].value())]
        finally:
            for run in self.runs:
                run.end_body()

    async def _read(self) -> None:
        """What the body reads, in order. Where it would have raised, it has not come to what was appended later."""
        root = self._cores[0]
        reads, self._reads = self._reads, []
        for op, known in reads:
            try:
                if not op.slots:
                    await settled(self._cores[op.branch])
                for slot in (self.slots[number] for number in op.slots):
                    await slot.wait()
                    slot.typed() if op.typed else slot.value()
            except Exception:
                root.declared = known
                raise

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
            case ToolsOp():
                tools = tuple(self._tool(spec) for spec in op.tools)
                self._cores[op.branch].submit(ShowTools(tools, self._where(op.line, op.file)))
            case SetOp():
                slot = DerivedSlot([self.slots[ref.slot] for ref in _refs(op.value)], self._derived(op.value))
                self._cores[op.branch].declare(op.name, slot)
            case OpenOp():
                outer = self._cores[0].run
                run = Run(op.program, outer.backend, streamed=outer.streamed, answer_tools=outer.answer_tools)
                self.runs.append(run)
                outer.inner.add(run)
                self._cores[op.branch] = StateCore(run, self._open())
            case ForkOp():
                children = AsyncState(self._cores[op.branch])._children(len(op.children))
                self._cores.update(zip(op.children, children, strict=True))
            case JoinOp():
                states = [AsyncState(self._cores[child]) for child in op.children]
                AsyncGroup(self._cores[op.branch], states).join(op.mode)

    def _text(self, op: TextOp) -> Expr:
        where = self._where(op.line, op.file)
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
        local = self._exprs[op.slot] if op.slot < len(self._exprs) else None
        where = local.where if isinstance(local, (Gen, Select)) else self._where(op.line, op.file)
        call: Expr
        if isinstance(op, SelectOp):
            call = Select(op.name, op.choices, as_method(op.method), where=where)
        else:
            constraint = None if op.constraint is None else Constraint(op.constraint, op.what, op.whole)
            parse = local.parse if isinstance(local, Gen) else None
            asked = op.tools
            use = None
            if asked is not None:
                use = ToolUse(
                    tuple(self._tool(spec) for spec in asked.tools), asked.max_rounds, asked.choice, asked.errors
                )
            call = Gen(op.name, make_options(op.options), constraint, parse, where, use)
        core = self._cores[op.branch]
        core.submit(call)
        self._keep(core, op.slot, call)

    def _keep(self, core: StateCore, slot: int, call: Expr) -> None:
        self.slots[slot] = core.declared[call]
        if slot < len(self._exprs):
            core.declared[self._exprs[slot]] = self.slots[slot]

    def _where(self, line: int, file: str = "") -> Where:
        return Where(file or self.graph.file, line, self.graph.name)

    def _tool(self, spec: ToolSpec) -> Tool:
        return self._tools.get(spec.name) or Tool(spec.name, spec.description, spec.parameters)

    # ------------------------------------------------------------ the result

    def _derived(self, spec: Any) -> Callable[[], Any]:
        return lambda: self._rebuilt(spec)

    def _rebuilt(self, spec: Any) -> Any:
        """The value that a body returns or sets, from its description in the graph; its slots are done."""
        if spec is None:
            return None
        ((kind, inner),) = spec.items()
        if kind == "value":
            return inner
        if kind == "typed":
            return self._slot_value(_ref(inner), True)
        if kind == "text":
            return "".join(part if isinstance(part, str) else self._quoted(_ref(part)) for part in inner)
        if kind == "dict":
            return {self._rebuilt(key): self._rebuilt(value) for key, value in inner}
        items = [self._rebuilt(item) for item in inner]
        return items if kind == "list" else tuple(items)

    def _quoted(self, ref: Ref) -> str:
        return self._arguments[ref.argument] if ref.argument else str(self._slot_value(ref, False))

    def _slot_value(self, ref: Ref, typed: bool) -> Any:
        slot = self.slots[ref.slot]
        value = slot.typed() if typed else slot.value()
        return value[ref.item] if ref.item >= 0 else value


async def settled(core: StateCore) -> None:
    """What `sync` does."""
    await core.settled()
    if core.error is not None:
        raise core.error


def _refs(spec: Any) -> Iterator[Ref]:
    """The slots that a described value is made of, in order."""
    if spec is None:
        return
    ((kind, inner),) = spec.items()
    if kind == "typed":
        yield _ref(inner)
    elif kind == "text":
        yield from (_ref(part) for part in inner if not isinstance(part, str) and not _ref(part).argument)
    elif kind == "dict":
        for pair in inner:
            yield from (ref for part in pair for ref in _refs(part))
    elif kind != "value":
        for item in inner:
            yield from _refs(item)


def _ref(given: Any) -> Ref:
    return given if isinstance(given, Ref) else Ref(**{key: value for key, value in given.items() if key != "type"})
