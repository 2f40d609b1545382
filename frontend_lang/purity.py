"""Whether running a body early, with stand-ins, could do more than write down a program.

Compiling runs a body that nobody asked to run. Where that is the caller's own wish (`compile`), it is theirs to judge;
where a batch does it by itself, the body's code must be of a kind that cannot act outside: it uses the DSL, plain
builtins, pure modules of the standard library, and functions that are of that kind themselves.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .expr import Expr
from .where import Where


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BUILTINS = _names("""
    abs all any bool dict divmod enumerate filter float format frozenset int isinstance iter len list map max min next
    pow range repr reversed round set sorted str sum tuple zip True False None
    ArithmeticError AssertionError Exception IndexError KeyError LookupError RuntimeError TypeError ValueError
""")
_MODULES = _names("collections functools itertools json math operator re string textwrap typing")
_READING = _names("copy count endswith format get index items join keys startswith strip values")
_PLAIN = (str, bytes, int, float, complex, bool, type(None), range)
_LOADS = _names("LOAD_GLOBAL LOAD_NAME")
_ATTRIBUTES = _names("LOAD_ATTR LOAD_METHOD")
_FREE = _names("LOAD_DEREF LOAD_CLASSDEREF LOAD_CLOSURE")
_ACTS = {
    "STORE_GLOBAL": "sets a global",
    "DELETE_GLOBAL": "deletes a global",
    "IMPORT_NAME": "imports a module",
    "YIELD_VALUE": "is a generator",
}
_DEPTH = 6
_MISSING = object()
_SURFACE = _names("""
    AsyncState Function Gen Select State Tool gen gen_int gen_string select system user assistant role tool
    system_begin system_end user_begin user_end assistant_begin assistant_end separate_reasoning
    REGEX_BOOL REGEX_FLOAT REGEX_INT REGEX_STR ChoicesSamplingMethod greedy_token_selection sum_logprobs
    token_length_normalized unconditional_likelihood_normalized
""")
"""Of this package: what only makes expressions."""


@dataclass(frozen=True, slots=True)
class Act:
    """What may act outside the program, and where."""

    what: str
    where: Where

    def __str__(self) -> str:
        return f"{self.what} ({self.where})"


def acts(body: Callable[..., Any], depth: int = 0) -> Act | None:
    """The first thing that a body does which may act outside; None if there is none."""
    code = getattr(body, "__code__", None)
    if not isinstance(code, CodeType) or depth > _DEPTH:
        return Act(f"calls {getattr(body, '__name__', body)!r}, which is no plain function", Where("", 0, ""))
    names = getattr(body, "__globals__", {})
    cells = dict(zip(code.co_freevars, getattr(body, "__closure__", None) or (), strict=False))
    return _in_code(code, names, cells, depth)


def _in_code(code: CodeType, names: dict[str, Any], cells: dict[str, Any], depth: int) -> Act | None:
    line = code.co_firstlineno
    steps = list(dis.get_instructions(code))
    stores = any(step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for step in steps)
    for at, step in enumerate(steps):
        line = step.starts_line if isinstance(step.starts_line, int) and step.starts_line > 1 else line
        where = Where(code.co_filename, line, code.co_name)
        what = _ACTS.get(step.opname)
        if what == "is a generator" and code.co_name in ("<genexpr>",):
            what = None
        if step.opname == "STORE_DEREF" and step.argval in code.co_freevars and step.argval in cells:
            what = f"sets {step.argval!r} of an outer function"
        if step.opname in _LOADS:
            what = _named(step.argval, names.get(step.argval, _MISSING), _rest(steps, at), stores, depth)
        elif step.opname in _FREE and step.argval in cells:
            what = _cell(step.argval, cells[step.argval], _rest(steps, at), stores, depth)
        if what is not None:
            return Act(what, where)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _in_code(constant, names, cells, depth)
            if inner is not None:
                return inner
    return None


def _rest(steps: list[dis.Instruction], at: int) -> Iterator[str]:
    """Attributes that are looked up on what was loaded at this place."""
    for step in steps[at + 1 :]:
        if step.opname not in _ATTRIBUTES:
            return
        yield str(step.argval)


def _cell(name: str, cell: Any, attributes: Iterator[str], stores: bool, depth: int) -> str | None:
    try:
        value = cell.cell_contents
    except ValueError:
        return f"uses {name!r} before it is set"
    return _value(name, value, list(attributes), stores, depth)


def _named(name: str, value: Any, attributes: Iterator[str], stores: bool, depth: int) -> str | None:
    if value is _MISSING:
        return None if name in _BUILTINS or not hasattr(builtins, name) else f"calls {name}()"
    return _value(name, value, list(attributes), stores, depth)


def _value(name: str, value: Any, attributes: list[str], stores: bool, depth: int) -> str | None:
    if isinstance(value, (*_PLAIN, Expr)):
        return None
    if _own(value):
        return _own_value(name, value, attributes, depth)
    if isinstance(value, (list, dict, set, tuple, frozenset)):
        if attributes and attributes[0] not in _READING:
            return f"calls {name}.{attributes[0]}()"
        if stores and isinstance(value, (list, dict)):
            return f"may change {name!r}"
        return None if _plain(value) else f"uses {name!r}, which holds more than plain values"
    if isinstance(value, ModuleType):
        place = value
        for attribute in attributes:
            inner = getattr(place, attribute, None)
            if not isinstance(inner, ModuleType):
                return None if place.__name__ in _MODULES else _value(f"{name}.{attribute}", inner, [], stores, depth)
            place = inner
        return None if place.__name__ in _MODULES or _own(place) else f"uses the module {name!r}"
    if isinstance(value, FunctionType):
        if value.__module__ in _MODULES:
            return None
        found = acts(value, depth + 1)
        return None if found is None else f"calls {name}(), which {found}"
    if isinstance(value, type):
        return None if hasattr(value, "model_json_schema") or value in (*_PLAIN, bool, list, dict) else f"uses {name}"
    return f"uses {name!r}, a {type(value).__name__}"


def _own_value(name: str, value: Any, attributes: list[str], depth: int) -> str | None:
    body = getattr(value, "body", None)
    if body is not None:  # a program that is called inside
        found = acts(body, depth + 1)
        return None if found is None else f"calls {name}(), which {found}"
    if isinstance(value, ModuleType):
        used = attributes[0] if attributes else ""
        return None if used in _SURFACE else f"uses {name}.{used}"
    kind = value if isinstance(value, (type, FunctionType)) else type(value)
    known = kind.__name__ in _SURFACE or kind.__module__.endswith(".choices") or kind.__module__.endswith(".tools")
    return None if known else f"uses {name}"


def _own(value: Any) -> bool:
    """Of this package: the DSL, and programs made with it."""
    kind = value if isinstance(value, (type, FunctionType, ModuleType)) else type(value)
    module = value.__name__ if isinstance(value, ModuleType) else getattr(kind, "__module__", "")
    return module == "ramet" or str(module).startswith("ramet.")


def _plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (*_PLAIN, Expr)):
        return True
    if depth > _DEPTH:
        return False
    if isinstance(value, dict):
        return all(_plain(key, depth + 1) and _plain(item, depth + 1) for key, item in value.items())
    return isinstance(value, (list, tuple, set, frozenset)) and all(_plain(item, depth + 1) for item in value)
