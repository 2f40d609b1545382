"""The core of a state: a queue of expressions, executed in order by a task on the backend's loop.

The user's thread appends and goes on; the task exists only while there is something to do. So a state costs no thread,
and an idle state no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from . import execute, execute_calls
from .backend import Branch
from .errors import ProgramCancelled, ProgramError, failed_call, skipped_call
from .expr import Deferred, Expr, Gen, Reasoning, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, ShowTools, Text
from .ops import Bound, Op, OpenMessage
from .run import Run
from .slot import CallSlot, Slot, TextLog, Waiters
from .where import Where

T = TypeVar("T")


class StateCore:
    """Fields above the line belong to the user's thread, those below to the loop."""

    __slots__ = (
        "__weakref__",
        "_blocked",
        "_ending",
        "_queue",
        "_task",
        "_working",
        "branch",
        "children",
        "declarations",
        "declared",
        "error",
        "forks",
        "joined",
        "log",
        "messages",
        "open_message",
        "open_scopes",
        "own",
        "role",
        "run",
        "scopes",
        "tools",
    )

    def __init__(self, run: Run, branch: Branch | None) -> None:
        self.run = run
        self.declared: dict[object, Slot] = {}
        self.own: dict[str, Slot] = {}
        """Names declared since the fork."""
        self.role: str | None = None
        self.scopes: tuple[tuple[str, CallSlot], ...] = ()
        self.forks = 0
        self.joined = False
        self.children: tuple[StateCore, ...] = ()
        """Children that were joined: their errors are this state's too."""
        # ----------------------------------------------------
        self.branch = branch
        self.log = TextLog()
        self.messages: list[dict[str, str]] = []
        self.tools: frozenset[str] = frozenset()
        """Names of tools that the prompt shows."""
        self.open_message: OpenMessage | None = None
        self.open_scopes: tuple[tuple[CallSlot, list[str]], ...] = ()
        self.error: ProgramError | None = None
        self.declarations = Waiters()
        self._queue: list[Op] = []  # a deque takes ten times as much, and queues are short
        self._task: asyncio.Task[None] | None = None
        self._working = False
        """An op is under way (a task that has not begun must not be cancelled: it would never begin)."""
        self._ending = False
        self._blocked = branch is None
        run.add(self)

    # ------------------------------------------------------------ the user's side

    def submit(self, expr: Expr) -> None:
        """Append an expression and return at once."""
        if self.joined:
            raise ProgramError("this branch was joined: append to its parent instead", program=self.run.program)
        ops = [self.plan(part) for part in expr.parts()]
        for op in ops:
            self._queue.append(op)
        if self.run.body_done:
            self._queue.append(Op(execute.end, always=True, more=False))
        self.run.backend.loop.call(self._kick)

    def enqueue(self, op: Op) -> None:
        self._queue.append(op)
        self.run.backend.loop.call(self._kick)

    def declare(self, name: str, slot: Slot) -> None:
        self.declared[name] = slot
        self.own[name] = slot
        if not self.run.backend.loop.closed:
            self.run.backend.loop.call(self.declarations.wake)

    def _slot(self, expr: Expr, name: str | None, where: Where, parse: Callable[[str], object] | None) -> CallSlot:
        slot = CallSlot(name, where, parse)
        self.declared[expr] = slot
        if name is not None:
            self.declare(name, slot)
        return slot

    def plan(self, expr: Expr) -> Op:
        """The step of a simple expression; declares its names."""
        match expr:
            case Text(value, where):
                return Op(Bound(execute.text, value), where=where)
            case Deferred(pieces, where):
                return Op(Bound(execute.deferred, pieces), where=where)
            case Gen(name, _, _, parse, where, _):
                slot = self._slot(expr, name, where, parse)
                return Op(Bound(execute_calls.generate, expr, slot), (slot,), where)
            case Select(name, _, _, _, parse, where):
                slot = self._slot(expr, name, where, parse)
                return Op(Bound(execute_calls.select, expr, slot), (slot,), where)
            case ShowTools(tools, where):
                return Op(Bound(execute.show_tools, tools), where=where)
            case RoleBegin(role, where):
                if self.role is not None:
                    raise ProgramError(
                        f"role {role!r} begins ({where}) inside role {self.role!r}: roles do not nest; end that one",
                        program=self.run.program,
                        where=where,
                    )
                self.role = role
                return Op(Bound(execute.role_begin, role), where=where)
            case RoleEnd(role, where):
                if self.role != role:
                    raise ProgramError(
                        f"role {role!r} ends ({where}), but {'none' if self.role is None else repr(self.role)} is open",
                        program=self.run.program,
                        where=where,
                    )
                self.role = None
                return Op(Bound(execute.role_end, role), where=where)
            case ScopeBegin(name, where):
                slot = self._slot(expr, name, where, None)
                self.scopes = (*self.scopes, (name, slot))
                return Op(Bound(execute.scope_begin, slot), (slot,), where)
            case ScopeEnd(name, where):
                if not self.scopes or self.scopes[-1][0] != name:
                    raise ProgramError(f"var_scope {name!r} ends ({where}), but is not the innermost open one")
                *outer, (_, slot) = self.scopes
                self.scopes = tuple(outer)
                return Op(Bound(execute.scope_end, slot), (slot,), where)
            case Reasoning():
                return execute.reasoning_op(self, expr)
            case _:
                raise TypeError(f"cannot append {type(expr).__name__} to a state")

    def end(self) -> None:
        """Nothing more comes from the body: let go of the KV when the queue is empty."""
        if not self.run.backend.loop.closed:
            self._ending = True
            self.run.backend.loop.call(self.declarations.wake)
            self.enqueue(Op(execute.end, always=True, more=False))

    def cancel(self, reason: str) -> None:
        if not self.run.backend.loop.closed:
            self.run.backend.loop.call(self._cancel, reason)

    @property
    def idle(self) -> bool:
        """Everything appended so far has been executed."""
        return not self._queue and self._task is None and not self._blocked

    # ------------------------------------------------------------ the loop's side

    def _kick(self) -> None:
        if self._task is None and not self._blocked and self._queue:
            self._task = self.run.backend.loop.start(self._drain())

    def unblock(self, branch: Branch | None, parent: StateCore) -> None:
        """The parent has come to the place of the fork: begin from what it holds (unless cancelled meanwhile)."""
        if not self._blocked:
            if branch is not None:
                branch.close()
            return
        self._blocked = False
        self.branch = branch
        self.log.append(parent.log.text())
        self.messages = list(parent.messages)
        self.tools = parent.tools
        if parent.open_message is not None:
            self.open_message = OpenMessage(parent.open_message.role, list(parent.open_message.parts))
        self.error = self.error or parent.error
        self._kick()

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._execute(self._queue.pop(0))
        finally:
            self._task = None
            if self._queue:
                self._kick()

    async def _execute(self, op: Op) -> None:
        if self.error is not None and not op.always:
            for slot in op.slots:
                if not slot.done:
                    slot.fail(skipped_call(self.error, slot.name, op.where or slot.where))
            return
        try:
            self._working = True
            await op.work(self)
        except asyncio.CancelledError:
            self.error = self.error or ProgramCancelled(
                f"program {self.run.program!r} was cancelled: its backend was shut down", program=self.run.program
            )
            self._fail(op, self.error)
        except Exception as error:
            name = op.slots[0].name if op.slots else None
            where = op.where or (op.slots[0].where if op.slots else Where("<text>", 0, ""))
            if self.error is None:
                self.error = failed_call(self.run.program, name, where, error, self.log.text())
            self._fail(op, self.error)
        finally:
            self._working = False

    def _fail(self, op: Op, error: ProgramError) -> None:
        self.error = error
        for slot in op.slots:
            if not slot.done:
                slot.fail(error)
        for slot, _ in self.open_scopes:
            if not slot.done:
                slot.fail(error)
        self.log.end()

    def _cancel(self, reason: str) -> None:
        if self.error is None and (self._queue or self._task is not None or self._blocked):
            self.error = ProgramCancelled(
                f"program {self.run.program!r} was cancelled: {reason}", program=self.run.program
            )
        if self._task is not None and self._working:
            self._task.cancel()
        if self._blocked:
            self._blocked = False
            self._kick()

    def will_go_on(self) -> bool:
        """More calls will follow the one that is being executed: its KV is worth keeping."""
        return not self._ending or any(op.more for op in list(self._queue))

    def add_text(self, text: str, *, streamed: bool = False) -> None:
        """Account for text that the branch now holds. ``streamed``: it is in the log already."""
        if not streamed:
            self.log.append(text)
        if self.open_message is not None:
            self.open_message.parts.append(text)
        for slot, parts in self.open_scopes:
            parts.append(text)
            slot.stream.append(text)

    def request(self, work: Callable[[StateCore], Awaitable[T]]) -> asyncio.Future[T]:
        """Do something when all that was appended so far is done; the future gets its result or the state's error."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run(core: StateCore) -> None:
            if future.done():  # who asked has gone meanwhile: nothing of the state depends on it
                return
            if core.error is not None:
                future.set_exception(core.error)
                return
            try:
                result = await work(core)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self._queue.append(Op(run, always=True, more=False))
        self._kick()
        return future

    async def settled(self) -> None:
        """Wait until all that was appended so far has been executed (or skipped after an error)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def reached(_: StateCore) -> None:
            if not future.done():
                future.set_result(None)

        self._queue.append(Op(reached, always=True, more=False))
        self._kick()
        await future
