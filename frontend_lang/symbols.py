"""Strings that stand for values not known yet, while a body is traced.

A symbol is a str, so that f-strings, ``+`` and ``join`` work as they always do; its characters are a marker, from which
the reference is found again in the text that it went into. Whatever would look at the value raises TraceError.
"""

from __future__ import annotations

import contextvars
import re
import zlib
from collections.abc import Callable
from typing import Any, NoReturn

from .errors import ProgramError
from .graph import Ref
from .where import Where, caller

_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
_MARK = re.compile(f"{_OPEN}([0-9]+)x([0-9a-f]{{8}})[^{_CLOSE}]*{_CLOSE}")


refusals: contextvars.ContextVar[list[TraceError] | None] = contextvars.ContextVar("ramet_refusals", default=None)
"""Every TraceError of the trace that is under way: a body that catches it is refused all the same."""


class TraceError(ProgramError):
    """The body cannot be compiled: what it does depends on a value that is known only when it runs. ``where``: the
    line; ``argument``: the program's argument that it depends on, if it is one."""

    argument: str | None = None

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        raised = refusals.get()
        if raised is not None:
            raised.append(self)


class Symbols:
    """The references of one trace. ``stuffing``: more characters of each marker. A body that looks at a text by other
    means than the symbol's own (a regex, the length of an f-string) does so on the marker: two traces with different
    stuffing differ then, and the program is refused."""

    def __init__(self, program: str, stuffing: str) -> None:
        self.program = program
        self._stuffing = stuffing.replace(_OPEN, "").replace(_CLOSE, "")
        self._first = zlib.crc32(stuffing.encode()) % 100_000
        self._refs: list[Ref] = []

    def make(self, ref: Ref, what: str, decide: Callable[[], str] | None = None) -> Symbol:
        """``decide``: gives the value for this trace (of a select), where the body looks at it."""
        number = self._first + len(self._refs)
        self._refs.append(ref)
        body = f"{number}x{zlib.crc32(f'{number}:{self.program}'.encode()):08x}{self._stuffing}"
        symbol = Symbol(f"{_OPEN}{body}{_CLOSE}")
        symbol.what, symbol.ref, symbol.decide, symbol.program = what, ref, decide, self.program
        return symbol

    def argument(self, name: str, is_text: bool) -> Symbol | Quotable:
        """What stands for an argument."""
        symbol = self.make(Ref(argument=name), f"argument {name!r}")
        return symbol if is_text else Quotable(symbol)

    def parts(self, text: str, where: Where) -> tuple[str | Ref, ...]:
        """A text taken apart into constants and references. Raises TraceError if a marker was changed."""
        text = str.__str__(text)  # of a symbol: its characters
        parts: list[str | Ref] = []
        place = 0
        for match in _MARK.finditer(text):
            number = int(match[1])
            check = f"{zlib.crc32(f'{number}:{self.program}'.encode()):08x}"
            if not 0 <= number - self._first < len(self._refs) or match[2] != check:
                raise self._changed(where)
            parts += [text[place : match.start()], self._refs[number - self._first]]
            place = match.end()
        parts.append(text[place:])
        if any(isinstance(part, str) and (_OPEN in part or _CLOSE in part) for part in parts):
            raise self._changed(where)
        return tuple(part for part in parts if part != "")

    def _changed(self, where: Where) -> TraceError:
        return TraceError(
            f"program {self.program!r} cannot be compiled: a text that holds a value known only at run time was "
            f"changed (cut, or put in upper or lower case) before it was appended ({where})",
            program=self.program,
            where=where,
        )


class Symbol(str):
    """See the module."""

    what: str
    ref: Ref
    program: str
    decide: Callable[[], str] | None

    def __hash__(self) -> int:
        return hash(_value(self, "hash"))

    def __format__(self, spec: str) -> str:
        return str.__format__(_value(self, "format") if spec else self, spec)

    def __bool__(self) -> bool:
        return bool(_value(self, "truth"))


def _value(symbol: Symbol, operation: str) -> str:
    if symbol.decide is not None:
        return symbol.decide()
    refuse(symbol.program, f"{symbol.what} is looked at ({operation})", symbol.ref.argument or None)


def refuse(program: str, what: str, argument: str | None = None) -> NoReturn:
    """Raises TraceError with the line of the body."""
    where = caller()
    error = TraceError(
        f"program {program!r} cannot be compiled: {what} at {where}, but its value is known only when the program "
        "runs. Run it live, or give arguments that the body computes with as constants: compile(name=value)",
        program=program,
        where=where,
    )
    error.argument = argument
    raise error


def _guard(name: str) -> Any:
    original = getattr(str, name)

    def guarded(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        return original(_value(self, name), *args, **kwargs)

    guarded.__name__ = name
    return guarded


def _comparison(name: str) -> Any:
    original = getattr(str, name)

    def compared(self: Symbol, other: Any) -> Any:
        if other is self:
            return name in ("__eq__", "__le__", "__ge__")
        return original(_value(self, name), _value(other, name) if isinstance(other, Symbol) else other)

    return compared


_PASS = {"__add__", "__radd__", "__str__", "__mod__", "__new__", "__init__", "__class__", "__getattribute__"}
_PASS |= {"__setattr__", "__delattr__", "__init_subclass__", "__subclasshook__", "__dir__", "__doc__", "__sizeof__"}
_PASS |= {
    "__format__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__hash__",
    "__bool__",
    "__repr__",
    "__getnewargs__",
}
for _name in dir(str):
    if _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        setattr(Symbol, _name, _comparison(_name))
    elif _name not in _PASS and callable(getattr(str, _name)) and _name not in ("maketrans",):
        setattr(Symbol, _name, _guard(_name))
for _name in ("__int__", "__float__", "__index__"):

    def _number(self: Symbol, _name: str = _name) -> Any:
        return int(_value(self, _name)) if _name != "__float__" else float(_value(self, _name))

    setattr(Symbol, _name, _number)


class Quotable:
    """An argument that is no text (a number, None): it can be quoted in an f-string, and nothing else."""

    def __init__(self, symbol: Symbol) -> None:
        vars(self)["_symbol"] = symbol

    def __format__(self, spec: str) -> str:
        return format(vars(self)["_symbol"], spec)

    def __str__(self) -> str:
        return str.__str__(vars(self)["_symbol"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refused()

    def _refused(self, *_: object) -> NoReturn:
        symbol = vars(self)["_symbol"]
        refuse(symbol.program, f"{symbol.what} is looked at", symbol.ref.argument)

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __getitem__ = __call__ = _refused
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __neg__ = __pow__ = __abs__ = _refused
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __rmod__ = __round__ = __and__ = __or__ = _refused
    __iter__ = __len__ = __bool__ = __int__ = __float__ = __index__ = __repr__ = _refused
    __hash__ = _refused
    __class__ = property(_refused)
    """What ``isinstance`` asks for."""


class Opaque:
    """A typed value (``s[handle]``): it can be returned, and nothing else."""

    def __init__(self, program: str, what: str, slot: int, item: int = -1) -> None:
        vars(self).update(_program=program, _what=what, ref=Ref(slot=slot, item=item))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(self._program, f"{self._what} is looked at (.{name})")

    def _refused(self, *_: object) -> Any:
        refuse(vars(self)["_program"], f"{vars(self)['_what']} is looked at")

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __mul__ = __getitem__ = _refused
    __iter__ = __len__ = __bool__ = __contains__ = __str__ = __int__ = __float__ = __call__ = _refused
    __hash__ = object.__hash__
