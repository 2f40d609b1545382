"""One way through a body, written down."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import expr as ir
from .graph import ReadOp, Ref
from .symbols import Opaque, Symbols
from .where import Where

current_tracer: contextvars.ContextVar[Tracer | None] = contextvars.ContextVar("ramet_tracer", default=None)


class Undecided(BaseException):
    """The body looked at a select whose result this trace does not know."""

    def __init__(self, slot: int, choices: tuple[str, ...]) -> None:
        super().__init__(slot)
        self.slot, self.choices = slot, choices


class Shared:
    """Numbers of slots over all ways through a body: the same call on a common stretch has one number."""

    def __init__(self) -> None:
        self.exprs: list[ir.Expr] = []
        self._numbers: dict[tuple[tuple[tuple[int, str], ...], int], int] = {}

    def number(self, path: tuple[tuple[int, str], ...], count: int, expr: ir.Expr) -> int:
        key = (path, count)
        if key not in self._numbers:
            self._numbers[key] = len(self.exprs)
            self.exprs.append(expr)
        return self._numbers[key]


class Tracer:
    """One way through a body. ``decided``: the results of the selects that the body looks at."""

    def __init__(self, program: str, file: str, decided: Mapping[int, str], stuffing: str, shared: Shared) -> None:
        self.program = program
        self._file = file
        self.symbols = Symbols(program, stuffing)
        self.ops: list[Any] = []
        self.branches = 0
        self.frozen = 0
        """Ops in front of this place belong to a stretch that other ways have too: they are not changed any more."""
        self.look: Undecided | None = None
        """The look at a select that this trace could not answer, should the body have caught it."""
        self._read: set[tuple[tuple[int, ...], bool]] = set()
        self._shared = shared
        self._decided = decided
        self._path: tuple[tuple[int, str], ...] = ()
        self._count = 0

    def file(self, where: Where) -> str:
        """The file of a line, where it is not the program's own."""
        return "" if where.file == self._file else where.file

    def branch(self) -> int:
        self.branches += 1
        return self.branches - 1

    def slot(self, expr: ir.Expr) -> int:
        self._count += 1
        return self._shared.number(self._path, self._count, expr)

    def read(self, branch: int, value: Known, typed: bool) -> Any:
        """What the body gets for a name."""
        op = ReadOp(branch, tuple(value.slots()), typed)
        if op.slots and (op.slots, typed) not in self._read:
            self._read.add((op.slots, typed))
            self.ops.append(op)
        return value.typed(self) if typed else value.read(self)

    def decide(self, slot: int, choices: tuple[str, ...]) -> str:
        if slot not in self._decided:
            self.look = Undecided(slot, choices)
            raise self.look
        choice = self._decided[slot]
        if (slot, choice) not in self._path:
            self._path = (*self._path, (slot, choice))
            self.frozen = len(self.ops)
        return choice


@dataclass(frozen=True, slots=True)
class Value:
    """What a name stands for while tracing. ``n``: a list of so many (0: one value); ``choices``: of a select."""

    slot: int
    what: str
    n: int = 0
    choices: tuple[str, ...] = ()

    def slots(self) -> Iterator[int]:
        yield self.slot

    def read(self, tracer: Tracer) -> Any:
        if self.n:
            return [tracer.symbols.make(Ref(slot=self.slot, item=item), self.what) for item in range(self.n)]
        decide = None if not self.choices else lambda: tracer.decide(self.slot, self.choices)
        return tracer.symbols.make(Ref(slot=self.slot), self.what, decide)

    def typed(self, tracer: Tracer) -> Any:
        if self.n:
            return [Opaque(tracer.program, self.what, self.slot, item) for item in range(self.n)]
        return Opaque(tracer.program, self.what, self.slot)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A name after a join: one entry per branch."""

    values: tuple[Value | Constant | Gathered | None, ...]

    def slots(self) -> Iterator[int]:
        for value in self.values:
            if value is not None:
                yield from value.slots()

    def read(self, tracer: Tracer) -> Any:
        return [None if value is None else value.read(tracer) for value in self.values]

    def typed(self, tracer: Tracer) -> Any:
        return [None if value is None else value.typed(tracer) for value in self.values]


@dataclass(frozen=True, slots=True)
class Constant:
    """A variable that the body set."""

    value: Any

    def slots(self) -> Iterator[int]:
        return iter(())

    def read(self, tracer: Tracer) -> Any:
        return self.value

    typed = read


Known: TypeAlias = "Value | Gathered | Constant"
