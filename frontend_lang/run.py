"""One run of a program: what all of its states have in common."""

from __future__ import annotations

import contextvars
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from .backend import Backend, Branch
from .budget import Budget
from .calls import CallRecord
from .options import NOTHING, Options
from .tools import ToolCall, ToolUse, answer_here

if TYPE_CHECKING:
    from .core import StateCore

AnswerTools = Callable[[Branch, ToolUse, Sequence[ToolCall]], Awaitable[list[ToolCall]]]

current_run: contextvars.ContextVar[Run | None] = contextvars.ContextVar("ramet_current_run", default=None)
"""The run whose body is being executed: programs called inside it use its backend."""


class Run:
    """``body_done``: the body has returned (or raised)."""

    __slots__ = (
        "__weakref__",
        "_cores",
        "_inner",
        "_lock",
        "answer_tools",
        "backend",
        "body_done",
        "body_error",
        "budget",
        "calls",
        "held",
        "on_cancel",
        "options",
        "program",
        "spec_tokens",
        "started",
        "streamed",
    )

    def __init__(
        self,
        program: str,
        backend: Backend,
        options: Options = NOTHING,
        spec_tokens: int = 0,
        streamed: bool = False,
        answer_tools: AnswerTools = answer_here,
        budget: Budget | None = None,
    ) -> None:
        self.program = program
        self.backend = backend
        self.options = options
        self.spec_tokens = spec_tokens
        self.streamed = streamed
        """Its texts are read while they grow."""
        self.answer_tools = answer_tools
        """What calls the tools that the model calls."""
        self.budget = budget
        """Of its texts and those of the programs inside; None: whatever memory holds."""
        self.on_cancel: Callable[[], None] | None = None
        self.body_done = False
        self.body_error: BaseException | None = None
        self._cores: list[weakref.ref[StateCore]] = []
        self._inner: tuple[weakref.ref[Run], ...] = ()
        self.started = time.monotonic()
        self.calls: list[CallRecord] = []
        """Every call of every branch, as they ended."""
        self.held: list[object] = []
        """What must live until the body has ended: its states are known here by weak references only."""
        self._lock = threading.Lock()

    def spend(self, characters: int) -> None:
        """Raises InvalidRequest where a run makes more text than it may."""
        if self.budget is not None:
            self.budget.spend(characters)

    def add(self, core: StateCore) -> None:
        with self._lock:
            if len(self._cores) >= 64 and not len(self._cores) & len(self._cores) - 1:
                self._cores = [reference for reference in self._cores if reference() is not None]
            self._cores.append(weakref.ref(core))

    def add_inner(self, run: Run) -> None:
        """A program that the body has called."""
        self._inner = (*(one for one in self._inner if one() is not None), weakref.ref(run))

    def members(self) -> list[StateCore]:
        with self._lock:
            return [core for reference in self._cores if (core := reference()) is not None]

    def may_declare(self) -> bool:
        """A name that is not known yet may still come: the body runs, and the caller is not the body itself."""
        return not self.body_done and current_run.get() is not self

    def end_body(self) -> None:
        """The body has returned: its states take nothing more, and let go of their KV when their work is done."""
        self.body_done = True
        for core in self.members():
            core.end()
        self.held.clear()

    def fail_body(self, error: BaseException) -> None:
        """The body raised."""
        self.body_error = error
        self.cancel(f"its body raised {type(error).__name__}")

    def cancel(self, reason: str) -> None:
        """Stop every generation of this run; values that are not there yet raise ProgramCancelled."""
        if self.on_cancel is not None and not self.backend.loop.closed:
            self.backend.loop.call(self.on_cancel)
        for core in self.members():
            core.cancel(reason)
        for reference in self._inner:
            run = reference()
            if run is not None:
                run.cancel(reason)
