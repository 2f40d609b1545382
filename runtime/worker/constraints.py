"""Compiled constraints of this worker, by key, under a limit of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from ramet.runtime.constrain.base import CompiledConstraint, Matcher
from ramet.runtime.protocol.errors import ConstraintError
from ramet.runtime.protocol.messages import ConstraintFailed, ConstraintSpec

Compile: TypeAlias = Callable[[ConstraintSpec], CompiledConstraint]


class ConstraintUnavailable(Exception):
    """The row's constraint did not compile here, or was never sent."""


class ConstraintCache:
    """Least recently used compiled constraints go first; their specifications stay, so that a key once sent can
    always be compiled again. A failure is remembered with its kind, never as another."""

    def __init__(self, compile_spec: Compile | None, limit_bytes: int) -> None:
        self._compile = compile_spec
        self._limit = limit_bytes
        self._specs: dict[str, ConstraintSpec] = {}
        self._failures: dict[str, ConstraintFailed] = {}
        self._compiled: OrderedDict[str, CompiledConstraint] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def add(self, key: str, spec: ConstraintSpec) -> ConstraintFailed | None:
        """Compile ``spec`` unless it is there; the failure, if it fails."""
        if self._specs.get(key) != spec:
            self._forget(key)
            self._specs[key] = spec
        if key not in self._compiled and key not in self._failures:
            self._build(key)
        return self._failures.get(key)

    def matcher(self, key: str) -> Matcher:
        """A fresh matcher. Raises ConstraintUnavailable."""
        if key not in self._specs:
            raise ConstraintUnavailable(f"constraint {key} was not sent to this worker before its row")
        compiled = self._compiled.get(key)
        if compiled is not None:
            self._compiled.move_to_end(key)
        elif key not in self._failures:
            compiled = self._build(key)
        if compiled is None:
            raise ConstraintUnavailable(f"constraint {key} does not compile: {self._failures[key].message}")
        return compiled.matcher()

    def _build(self, key: str) -> CompiledConstraint | None:
        try:
            if self._compile is None:
                raise ConstraintError("this worker was started without a compiler of constraints")
            compiled = self._compile(self._specs[key])
        except ConstraintError as error:
            self._failures[key] = ConstraintFailed(key, error.kind, str(error))
            return None
        except Exception as error:  # a compiler's own fault must not end the worker
            self._failures[key] = ConstraintFailed(key, "crashed", f"{type(error).__name__}: {error}")
            return None
        self._compiled[key] = compiled
        self._bytes += compiled.size
        while self._bytes > self._limit and len(self._compiled) > 1:
            _, old = self._compiled.popitem(last=False)
            self._bytes -= old.size
        return compiled

    def _forget(self, key: str) -> None:
        self._failures.pop(key, None)
        old = self._compiled.pop(key, None)
        if old is not None:
            self._bytes -= old.size
