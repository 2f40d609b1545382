"""Running a graph: every op is appended at once; a text that quotes a value waits for it in its own branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .async_state import AsyncGroup, AsyncState
from .backend import Branch
from .core import StateCore
from .expr import Deferred, Expr, Text
from .graph import (
    ChooseOp,
    ForkOp,
    GenOp,
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
)
from .prepared import Prepared
from .run import Run
from .slot import DerivedSlot, Slot


class Names(dict[object, Slot]):
    """What a state has declared, and a way back."""

    __slots__ = ("_replaced",)

    def __init__(self) -> None:
        super().__init__()
        self._replaced: list[tuple[object, Slot]] = []

    def __setitem__(self, name: object, slot: Slot) -> None:
        if name in self:
            self._replaced.append((name, self[name]))
        super().__setitem__(name, slot)

    def mark(self) -> tuple[int, int]:
        return len(self), len(self._replaced)

    def back(self, mark: tuple[int, int]) -> None:
        """As it was at the mark."""
        count, replaced = mark
        for name, slot in reversed(self._replaced[replaced:]):
            super().__setitem__(name, slot)
        for name in list(self)[count:]:
            del self[name]


class Replay:
    """One run of a graph. ``open_branch``: makes the branches of programs that are called inside (None: the backend's).
    ``slots``: what the calls became."""

    __slots__ = ("_arguments", "_cores", "_names", "_open", "_prepared", "_reads", "runs", "slots")

    def __init__(
        self,
        root: StateCore,
        prepared: Prepared,
        arguments: Mapping[str, str],
        open_branch: Callable[[], Branch] | None = None,
    ) -> None:
        self.slots: dict[int, Slot] = {}
        self.runs: list[Run] = []
        self._prepared = prepared
        self._arguments = arguments
        self._cores = {0: root}
        self._names = root.declared = Names()
        self._reads: list[tuple[ReadOp, tuple[int, int]]] = []
        self._open = open_branch or root.run.backend.open

    async def run(self) -> Any:
        """What the body returns. Raises the first error of what it reads."""
        block = self._prepared.graph.body
        try:
            while True:
                choose: ChooseOp | None = None
                for op in block.ops:
                    if isinstance(op, ChooseOp):
                        choose = op
                    elif isinstance(op, ReadOp):
                        self._reads.append((op, self._names.mark()))
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
        reads, self._reads = self._reads, []
        for op, mark in reads:
            try:
                if not op.slots:
                    await settled(self._cores[op.branch])
                for slot in (self.slots[number] for number in op.slots):
                    await slot.wait()
                    slot.typed() if op.typed else slot.value()
            except Exception:
                self._names.back(mark)
                raise

    # ------------------------------------------------------------ ops

    def _append(self, op: Any) -> None:
        match op:
            case TextOp():
                plain = all(isinstance(part, str) for part in op.parts)
                self._cores[op.branch].submit(self._prepared[op] if plain else self._quoting(op))
            case RoleOp() | ToolsOp():
                self._cores[op.branch].submit(self._prepared[op])
            case GenOp() | SelectOp() | ScopeOp():
                core, expr = self._cores[op.branch], self._prepared[op]
                core.submit(expr)
                if op.slot >= 0:
                    self.slots[op.slot] = core.declared[expr]
            case SetOp():
                slot = DerivedSlot([self.slots[ref.slot] for ref in _refs(op.value)], self._derived(op.value))
                self._cores[op.branch].declare(op.name, slot)
            case OpenOp():
                outer = self._cores[0].run
                run = Run(
                    op.program,
                    outer.backend,
                    streamed=outer.streamed,
                    answer_tools=outer.answer_tools,
                    budget=outer.budget,
                )
                self.runs.append(run)
                outer.add_inner(run)
                self._cores[op.branch] = StateCore(run, self._open())
            case ForkOp():
                children = AsyncState(self._cores[op.branch])._children(len(op.children))
                self._cores.update(zip(op.children, children, strict=True))
            case JoinOp():
                states = [AsyncState(self._cores[child]) for child in op.children]
                AsyncGroup(self._cores[op.branch], states).join(op.mode)

    def _quoting(self, op: TextOp) -> Expr:
        parts: list[str | tuple[Slot, int]] = []
        for part in op.parts:
            if isinstance(part, str):
                parts.append(part)
            else:
                parts.append(self._arguments[part.argument] if part.argument else (self.slots[part.slot], part.item))
        known = [part for part in parts if isinstance(part, str)]
        where = self._prepared.where(op)
        return Text("".join(known), where) if len(known) == len(parts) else Deferred(tuple(parts), where)

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
            texts = [part if isinstance(part, str) else self._quoted(_ref(part)) for part in inner]
            self._cores[0].run.spend(sum(map(len, texts)))
            return "".join(texts)
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
