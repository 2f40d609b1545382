"""The intermediate representation: immutable expressions that ``+`` composes.

An expression says what to do; it holds no state and may be appended to any number of states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar, Union

from .options import NOTHING, Options
from .where import UNKNOWN, Where

if TYPE_CHECKING:
    from .choices import ChoicesMethod
    from .constraint import Constraint
    from .slot import Slot
    from .tools import Tool, ToolUse

T = TypeVar("T", covariant=True)
Appendable = Union["Expr", str]


class Expr:
    """Base of all expressions."""

    __slots__ = ()

    def __add__(self, other: Appendable) -> Chain:
        return Chain((*self.parts(), *as_expr(other).parts()))

    def __radd__(self, other: str) -> Chain:
        return Chain((*as_expr(other).parts(), *self.parts()))

    def parts(self) -> tuple[Expr, ...]:
        """The simple expressions it consists of, in order."""
        return (self,)


@dataclass(frozen=True, eq=False, slots=True)
class Chain(Expr):
    """Several expressions, one after the other."""

    items: tuple[Expr, ...]

    def parts(self) -> tuple[Expr, ...]:
        return self.items

    def __iter__(self) -> Iterator[Expr]:
        return iter(self.items)


@dataclass(frozen=True, eq=False, slots=True)
class Text(Expr):
    """Constant text. Special tokens that it spells are plain text."""

    value: str
    where: Where = UNKNOWN


@dataclass(frozen=True, eq=False, slots=True)
class Deferred(Expr):
    """Text that quotes values (slot, item of its list or -1), which it waits for."""

    pieces: tuple[str | tuple[Slot, int], ...]
    where: Where = UNKNOWN


@dataclass(frozen=True, eq=False, slots=True)
class Gen(Expr, Generic[T]):
    """Generate. Also the typed handle of its value: ``state[gen]`` is the parsed value."""

    name: str | None = None
    options: Options = NOTHING
    constraint: Constraint | None = None
    parse: Callable[[str], T] | None = None
    where: Where = UNKNOWN
    tools: ToolUse | None = None


@dataclass(frozen=True, eq=False, slots=True)
class ShowTools(Expr):
    """Tell the model of the tools, at the end of a system message."""

    tools: tuple[Tool, ...]
    where: Where = UNKNOWN


@dataclass(frozen=True, eq=False, slots=True)
class Select(Expr):
    """Append the best of ``choices``, scored in token space. ``parse``: makes the typed value of the choice's text."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    options: Options = NOTHING
    parse: Callable[[str], object] | None = None
    where: Where = UNKNOWN


@dataclass(frozen=True, eq=False, slots=True)
class RoleBegin(Expr):
    role: str
    where: Where = UNKNOWN


@dataclass(frozen=True, eq=False, slots=True)
class RoleEnd(Expr):
    role: str
    where: Where = UNKNOWN


@dataclass(frozen=True, eq=False, slots=True)
class ScopeBegin(Expr):
    """From here to the matching ScopeEnd, the text appended is the variable ``name``."""

    name: str
    where: Where = UNKNOWN


@dataclass(frozen=True, eq=False, slots=True)
class ScopeEnd(Expr):
    name: str
    where: Where = UNKNOWN


@dataclass(frozen=True, eq=False, slots=True)
class Reasoning(Expr):
    """``body`` generates; what is up to ``close`` becomes ``NAME_reasoning_content``, the rest is the value of NAME."""

    body: Expr
    open: str = "<think>"
    close: str = "</think>"
    where: Where = field(default=UNKNOWN)


def as_expr(value: Appendable) -> Expr:
    """Text for a str; anything else that is not an expression is a TypeError that says what to write."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Text(value)
    if value is None:
        raise ValueError("cannot append None to a state: append text or an expression (a function without `return`?)")
    raise TypeError(f"cannot append {type(value).__name__} to a state: append str({value!r}), or an expression")


def chain(values: Sequence[Appendable]) -> Expr:
    """The values one after the other."""
    parts: list[Expr] = []
    for value in values:
        parts.extend(as_expr(value).parts())
    return parts[0] if len(parts) == 1 else Chain(tuple(parts))
