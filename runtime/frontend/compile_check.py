"""A constraint is compiled before it is submitted, so that a bad one is an error before anything is queued."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from ramet.runtime.protocol.errors import ConstraintCrashed, ConstraintError, Overloaded
from ramet.runtime.protocol.messages import ConstraintSpec

if TYPE_CHECKING:
    from ramet.runtime.constrain.bounded import BoundedCompiler

Compile = Callable[[ConstraintSpec], object]
"""Compiles a specification, or raises a ConstraintError. Runs in a thread. A ConstraintSpec that it returns is what the
worker gets in place of the one that was given: the same, lowered, so that the worker has less to do."""


class BoundedCompile:
    """Compiles in a child process under limits of time and memory. The child starts with the first constraint,
    or with ``warm``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._compiler: BoundedCompiler | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._warming: threading.Thread | None = None

    def __call__(self, spec: ConstraintSpec) -> ConstraintSpec:
        if self._warming is not None:
            self._warming.join()  # sooner done than a second child is there
        return self._started().check(spec)

    def warm(self) -> None:
        """Start the child now. Returns at once."""

        def start() -> None:
            # A child that does not start is an error of the first constraint, which tries again.
            with contextlib.suppress(ConstraintError):
                self._started().warm()

        self._warming = threading.Thread(target=start, name="ramet-warm-constraints", daemon=True)
        self._warming.start()

    def _started(self) -> BoundedCompiler:
        from ramet.runtime.constrain.bounded import BoundedCompiler  # only when a constraint is used

        with self._lock:
            if self._closed:
                raise ConstraintCrashed("the client is closed")
            if self._compiler is None:
                self._compiler = BoundedCompiler(self._tokenizer)
            return self._compiler

    def close(self) -> None:
        """Ends the child."""
        with self._lock:
            self._closed = True
            if self._compiler is not None:
                self._compiler.close()


_encoder = msgspec.json.Encoder()


def constraint_key(spec: ConstraintSpec) -> str:
    """The same specification has the same key, in every process."""
    return hashlib.sha256(_encoder.encode(spec)).hexdigest()[:32]


class CompileCheck:
    """Remembers which specifications compiled, and how others failed. Waiters for one share its compile.

    ``waiting``: how many may wait to be compiled (None: any number)."""

    def __init__(
        self, compile: Compile, *, remembered: int = 4096, lowered_chars: int = 64_000_000, waiting: int | None = None
    ) -> None:
        self._compile = compile
        self._remembered = remembered
        self._waiting = waiting
        self._lowered: OrderedDict[str, ConstraintSpec] = OrderedDict()
        self._lowered_room = lowered_chars
        self._known: OrderedDict[str, ConstraintError | None] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}

    def passed(self, key: str) -> bool:
        """It compiled before: no need to wait."""
        if key not in self._known:
            return False
        self._known.move_to_end(key)
        return self._known[key] is None

    def for_worker(self, key: str, spec: ConstraintSpec) -> ConstraintSpec:
        """What to send: the lowered form while it is remembered, else the specification itself."""
        return self._lowered.get(key, spec)

    def check(self, key: str, spec: ConstraintSpec) -> Awaitable[None]:
        """Raises the ConstraintError of ``spec``, if it has one; Overloaded where too many wait to be compiled."""
        return self._check(key, spec)

    async def _check(self, key: str, spec: ConstraintSpec) -> None:
        if key in self._known:
            self._known.move_to_end(key)
            error = self._known[key]
            if error is not None:
                raise error
            return
        task = self._running.get(key)
        if task is None:
            if self._waiting is not None and len(self._running) >= self._waiting:
                raise Overloaded(
                    f"{len(self._running)} constraints that were not used before wait to be compiled, the limit is "
                    f"{self._waiting}; try again later, or use fewer different ones"
                )
            task = asyncio.create_task(self._run(key, spec))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._running[key] = task
        # A waiter that goes away must not take the compile with it that others wait for.
        await asyncio.shield(task)

    async def _run(self, key: str, spec: ConstraintSpec) -> None:
        try:
            try:
                result = await asyncio.to_thread(self._compile, spec)
            except ConstraintCrashed:  # perhaps something else killed the child: a second crash is the constraint's
                result = await asyncio.to_thread(self._compile, spec)
            self._remember(key, None)
            if isinstance(result, ConstraintSpec):
                self._keep_lowered(key, result)
        except ConstraintError as error:
            # Whether a compile times out or crashes depends on the moment: only lasting verdicts are remembered.
            if error.kind in ("invalid", "unsupported", "too_complex"):
                self._remember(key, error)
            raise
        finally:
            del self._running[key]

    def _keep_lowered(self, key: str, spec: ConstraintSpec) -> None:
        replaced = self._lowered.pop(key, None)
        self._lowered[key] = spec
        self._lowered_room -= len(spec.text) - (0 if replaced is None else len(replaced.text))
        while self._lowered_room < 0 and len(self._lowered) > 1:
            _, old = self._lowered.popitem(last=False)
            self._lowered_room += len(old.text)

    def _remember(self, key: str, error: ConstraintError | None) -> None:
        self._known[key] = error
        while len(self._known) > self._remembered:
            self._known.popitem(last=False)
