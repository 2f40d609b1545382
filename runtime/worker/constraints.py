"""Compiled constraints of this worker, by key, under a limit of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Executor, Future
from typing import TypeAlias

from ramet.runtime.constrain.base import CompiledConstraint, Matcher
from ramet.runtime.protocol.errors import ConstraintError
from ramet.runtime.protocol.messages import ConstraintFailed, ConstraintSpec

Compile: TypeAlias = Callable[[ConstraintSpec], CompiledConstraint]


KEPT_KEYS = 1024
KEPT_BYTES = 64 * 1024 * 1024
"""Specifications, not their compiled forms."""

_SMALLEST = ConstraintSpec("regex", "a")


class ConstraintUnavailable(Exception):
    """The row's constraint did not compile here, or was never sent."""


class ConstraintCache:
    """Least recently used compiled constraints go first; their specifications stay much longer, so that a key once sent
    can be compiled again. A failure is remembered with its kind, never as another.

    With an ``executor`` compiling happens there, and ``ready`` says whether a key is done; without, at once. Everything
    but the compiling itself belongs to one thread.
    """

    def __init__(self, compile_spec: Compile | None, limit_bytes: int, executor: Executor | None = None) -> None:
        self._compile = compile_spec
        self._limit = limit_bytes
        self._executor = executor
        self._specs: OrderedDict[str, ConstraintSpec] = OrderedDict()
        self._spec_bytes = 0
        self._failures: dict[str, ConstraintFailed] = {}
        self._unreported: list[ConstraintFailed] = []
        self._compiled: OrderedDict[str, CompiledConstraint] = OrderedDict()
        self._pending: dict[str, Future[CompiledConstraint | ConstraintFailed]] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def warm(self) -> None:
        """Begin to ready the compiler, which takes a while to read the vocabulary, so that the first key waits less."""
        if self._executor is not None and self._compile is not None:
            self._executor.submit(self._outcome, "", _SMALLEST)

    def add(self, key: str, spec: ConstraintSpec) -> None:
        """Begin to compile ``spec`` unless that was done."""
        if self._specs.get(key) != spec:
            self._forget(key)
            self._specs[key] = spec
            self._spec_bytes += len(spec.text)
            self._forget_old()
        self.ready(key)

    def ready(self, key: str) -> bool:
        """False while the key is being compiled; begins that where it is due."""
        if key in self._compiled or key in self._failures or key not in self._specs:
            return True
        if self._executor is None:
            self._store(key, self._outcome(key, self._specs[key]))
            return True
        pending = self._pending.get(key)
        if pending is None:
            self._pending[key] = self._executor.submit(self._outcome, key, self._specs[key])
            return False
        if not pending.done():
            return False
        del self._pending[key]
        self._store(key, pending.result())
        return True

    def wait(self, key: str, timeout_s: float) -> None:
        """Until the key is ready, or the time is over."""
        if not self.ready(key):
            futures.wait((self._pending[key],), timeout_s)

    def matcher(self, key: str) -> Matcher:
        """A fresh matcher of a key that is ready. Raises ConstraintUnavailable."""
        if key not in self._specs:
            raise ConstraintUnavailable(f"constraint {key} was not sent to this worker before its row")
        if not self.ready(key):
            raise ConstraintUnavailable(f"constraint {key} is still being compiled")
        if key in self._failures:
            raise ConstraintUnavailable(f"constraint {key} does not compile: {self._failures[key].message}")
        self._compiled.move_to_end(key)
        self._specs.move_to_end(key)
        return self._compiled[key].matcher()

    def take_failures(self) -> list[ConstraintFailed]:
        """Failures since the last call."""
        failures, self._unreported = self._unreported, []
        return failures

    def _outcome(self, key: str, spec: ConstraintSpec) -> CompiledConstraint | ConstraintFailed:
        """On whatever thread."""
        try:
            if self._compile is None:
                raise ConstraintError("this worker was started without a compiler of constraints")
            return self._compile(spec)
        except ConstraintError as error:
            return ConstraintFailed(key, error.kind, str(error))
        except Exception as error:  # a compiler's own fault must not end the worker
            return ConstraintFailed(key, "crashed", f"{type(error).__name__}: {error}")

    def _store(self, key: str, outcome: CompiledConstraint | ConstraintFailed) -> None:
        if isinstance(outcome, ConstraintFailed):
            self._failures[key] = outcome
            self._unreported.append(outcome)
            return
        self._compiled[key] = outcome
        self._bytes += outcome.size
        while self._bytes > self._limit and len(self._compiled) > 1:
            _, old = self._compiled.popitem(last=False)
            self._bytes -= old.size

    def _forget_old(self) -> None:
        """What was used least lately, beyond what the scheduler counts on: it sends such a key again before its row."""
        while len(self._specs) > 1 and (len(self._specs) > KEPT_KEYS or self._spec_bytes > KEPT_BYTES):
            self._forget(next(iter(self._specs)))

    def _forget(self, key: str) -> None:
        spec = self._specs.pop(key, None)
        if spec is not None:
            self._spec_bytes -= len(spec.text)
        self._failures.pop(key, None)
        self._pending.pop(key, None)
        old = self._compiled.pop(key, None)
        if old is not None:
            self._bytes -= old.size
