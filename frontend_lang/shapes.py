"""Which runs of a program may be made from its graph, so that nobody can tell.

A graph holds for one *shape* of arguments: which are given, which of them are text, which are numbers that are only
quoted, and the values of those that the body computes with. A shape is traced once; what cannot be traced runs live.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from .purity import acts
from .symbols import TraceError
from .where import Where

if TYPE_CHECKING:
    from .compiled import Compiled
    from .program import Function

log = logging.getLogger("ramet.programs")
MAX_SHAPES = 32
"""Shapes that are traced by themselves: one per value of an argument that the body computes with."""
Shape = tuple[tuple[str, str, bytes], ...]


class Shapes:
    """Of one program; kept with it."""

    def __init__(self, program: Function[Any]) -> None:
        self._program = program
        self._known: dict[Shape, Compiled[Any] | TraceError] = {}
        self._computed: set[str] = set()
        """Arguments whose value the body computes with."""
        self._act: TraceError | None = None
        self._judged = False

    def find(self, given: Mapping[str, Any], trusted: bool) -> tuple[Compiled[Any], dict[str, str]]:
        """The graph for these arguments, and those of them that it takes. ``trusted``: the caller says that the body
        may be run early. Raises TraceError, which says why it cannot be."""
        if not trusted:
            self._judge()
        while True:
            shape, taken = self._shape(given)
            found = self._known.get(shape) or self._traced(shape, given, taken)
            if isinstance(found, TraceError):
                raise found
            if isinstance(found, str):
                self._computed.add(found)
                continue
            return found, taken

    def _judge(self) -> None:
        if not self._judged:
            self._judged = True
            act = acts(self._program.body)
            if act is not None:
                self._act = _refusal(
                    self._program, f"its body {act.what}, which may act outside; compile=True runs it early", act.where
                )
        if self._act is not None:
            raise self._act

    def _shape(self, given: Mapping[str, Any]) -> tuple[Shape, dict[str, str]]:
        """(shape, arguments that stay open)."""
        shape: list[tuple[str, str, bytes]] = []
        taken: dict[str, str] = {}
        for name, value in given.items():
            kind = type(value)
            if name not in self._computed and kind in (str, int, float):
                shape.append((name, kind.__name__, b""))
                taken[name] = str(value)
            else:
                shape.append((name, kind.__name__, self._spelled(name, value)))
        return tuple(shape), taken

    def _spelled(self, name: str, value: Any) -> bytes:
        if _is_plain(value):
            try:
                return repr(value).encode() if isinstance(value, float) else msgspec.msgpack.encode(value)
            except (TypeError, OverflowError, ValueError):
                pass
        raise _refusal(self._program, f"argument {name!r} is a {type(value).__name__}, not text, a number or a list")

    def _traced(
        self, shape: Shape, given: Mapping[str, Any], taken: Mapping[str, str]
    ) -> Compiled[Any] | TraceError | str:
        """The graph, why there is none, or an argument that the body computes with."""
        from .compiled import Compiled

        if len(self._known) >= MAX_SHAPES:
            return _refusal(self._program, f"it computes with its arguments, and has been given {MAX_SHAPES} kinds")
        texts = {name: type(given[name]) is str for name in taken}
        constants = {name: value for name, value in given.items() if name not in taken}
        found: Compiled[Any] | TraceError
        try:
            found = Compiled.of(self._filled(given), constants, texts)
        except TraceError as error:
            if error.argument in taken:
                return error.argument or ""
            found = error
        self._known[shape] = found
        return found

    def _filled(self, given: Mapping[str, Any]) -> Function[Any]:
        """The program with defaults as constants, and without what was bound to arguments that are given."""
        from .program import Function

        program = self._program
        parameters = program.signature.parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        bound = {name: value for name, value in {**defaults, **program.bound}.items() if name not in given}
        return Function(program.body, bound)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Spelled the same way only by equal values of equal types."""
    if value is None or type(value) in (str, int, float, bool):
        return True
    if depth > 8:
        return False
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item, depth + 1) for key, item in value.items())
    return type(value) is list and all(_is_plain(item, depth + 1) for item in value)


def _refusal(program: Function[Any], why: str, where: Where | None = None) -> TraceError:
    message = f"program {program.name!r} is not compiled by itself: {why}"
    if where is None:
        return TraceError(message, program=program.name)
    return TraceError(f"{message} ({where})", program=program.name, where=where)
