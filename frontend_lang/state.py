"""The handle of a state, as a program and its caller hold it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, overload

from . import reading
from .core import StateCore
from .errors import ProgramError
from .execute import fork_op
from .explain import Explanation
from .expr import Appendable, Chain, Expr, Gen, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, Text, as_expr
from .slot import SetSlot
from .where import caller

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVar

    from .group import PlainGroup

    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

    R = TypeVar("R")
T = TypeVar("T")


class _StateBase(Generic[R]):
    """What states of plain and of ``async def`` programs have in common: everything that does not wait."""

    def __init__(self, core: StateCore, *, owner: bool = False) -> None:
        self._core = core
        self._owner = owner
        self._returned: R | None = None

    def __iadd__(self, other: Appendable) -> Self:
        """Append text or an expression; returns at once. Raises ValueError for None, TypeError for anything else."""
        self._append(other)
        return self

    def _append(self, other: Appendable) -> None:
        expr = as_expr(other)
        self._core.submit(Text(other, caller()) if isinstance(other, str) else expr)

    def __contains__(self, name: object) -> bool:
        """The variable is there now (never waits)."""
        slot = self._core.declared.get(name)
        return slot is not None and slot.done and getattr(slot, "error", None) is None

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable of the program (the text is not changed)."""
        self._core.declare(name, SetSlot(value, caller()))

    def set_var(self, name: str, value: Any) -> None:
        """The same as ``state[name] = value``."""
        self[name] = value

    # ------------------------------------------------------------ roles and scopes

    def _role(self, role: str, content: Appendable | None) -> Any:
        where = caller()
        if content is None:
            return self._role_scope(role)
        self._core.submit(Chain((RoleBegin(role, where), *as_expr(content).parts(), RoleEnd(role, where))))
        return self

    @contextmanager
    def _role_scope(self, role: str) -> Iterator[None]:
        self._core.submit(RoleBegin(role, caller()))
        try:
            yield
        finally:
            self._core.submit(RoleEnd(role, caller()))

    def role(self, role: str, content: Appendable | None = None) -> Any:
        """Append ``content`` as a message of ``role``; without content: a context manager for what is inside."""
        return self._role(role, content)

    def system(self, content: Appendable | None = None) -> Any:
        return self._role("system", content)

    def user(self, content: Appendable | None = None) -> Any:
        return self._role("user", content)

    def assistant(self, content: Appendable | None = None) -> Any:
        return self._role("assistant", content)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Variable ``name`` is all the text that is appended inside."""
        self._core.submit(ScopeBegin(name, caller()))
        try:
            yield
        finally:
            self._core.submit(ScopeEnd(name, caller()))

    # ------------------------------------------------------------ forks

    def _children(self, size: int) -> list[StateCore]:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"fork() makes 1 or more branches, got {size!r}")
        core = self._core
        if core.joined:
            raise ProgramError("this branch was joined: fork its parent instead", program=core.run.program)
        children = []
        for _ in range(size):
            child = StateCore(core.run, None)
            child.declared = dict(core.declared)
            child.role = core.role
            children.append(child)
        core.enqueue(fork_op(children, core.forks))
        core.forks += 1
        return children

    def __del__(self) -> None:
        if self._owner:
            self._core.end()

    def __repr__(self) -> str:
        core = self._core
        names = ", ".join(str(name) for name in list(core.declared) if isinstance(name, str))
        return f"<{type(self).__name__} of {core.run.program!r}: {names or 'no variables'}>"


class State(_StateBase[R]):
    """One branch of a program. Reading (``state[...]``, ``text()``, ...) waits for what it reads, and raises the error
    of the call that should have made it."""

    @overload
    def __getitem__(self, name: str) -> Any: ...
    @overload
    def __getitem__(self, name: Gen[T]) -> T: ...
    @overload
    def __getitem__(self, name: Select) -> str: ...
    def __getitem__(self, name: str | Expr) -> Any:
        """A variable: str (list of str where n > 1 or after a join); of a `gen` object: its typed value."""
        slot = reading.find(self._core, name)
        return slot.typed() if isinstance(name, Gen) else slot.value()

    def get_var(self, name: str) -> Any:
        """The same as ``state[name]``."""
        return self[name]

    def __str__(self) -> str:
        """``ProgramState(TEXT)``, as programs written for SGLang expect; waits for the text."""
        return f"ProgramState({self.text()})"

    def parsed(self, name: str | Expr) -> Any:
        """The typed value: pydantic model or JSON value of a schema, int, float, bool of a dtype; else the text."""
        return reading.find(self._core, name).typed()

    def get_meta_info(self, name: str | Expr) -> Any:
        """Token counts, finish_reason, log-probabilities of a variable; a list of them where the value is a list."""
        return reading.find(self._core, name).meta()

    def text(self) -> str:
        """All text so far, prompt and template text included."""
        reading.settle(self._core)
        return self._core.log.text()

    def messages(self) -> list[dict[str, str]]:
        """Closed messages as ``{"role", "content"}``."""
        reading.settle(self._core)
        return [dict(message) for message in self._core.messages]

    def sync(self) -> None:
        """Wait for everything appended so far."""
        reading.settle(self._core)

    def token_ids(self) -> list[int]:
        """Token ids of the branch, as far as they are encoded; text after the last call may be missing."""
        reading.settle(self._core)
        branch, loop = self._core.branch, self._core.run.backend.loop
        if branch is None:
            return []
        return list(asyncio.run(branch.token_ids()) if loop.closed else loop.wait(branch.token_ids()))

    def error(self) -> BaseException | None:
        """The first error of this state, its body or the branches joined into it; None if all went well. Waits."""
        return reading.first_error(self._core)

    @property
    def ret_value(self) -> R | None:
        """What the body returned, None while it runs."""
        return self._returned

    def result(self) -> R:
        """What the body returned; waits for it and raises what it raised. Of a body that returned nothing, also the
        error of a call that it appended and never read."""
        reading.await_body(self._core)
        error = self._core.run.body_error
        if error is None and self._returned is None:
            error = reading.own_error(self._core)
        if error is not None:
            raise error
        return self._returned  # type: ignore[return-value]

    def explain(self) -> Explanation:
        """What every call of this run cost, and where its prompt stopped being cached; waits. ``print`` it."""
        reading.first_error(self._core)
        return Explanation(self._core.run.program, sorted(self._core.run.calls, key=lambda call: call.begin))

    def cancel(self) -> None:
        """Stop the generations of this run; values that are not there yet raise ProgramCancelled."""
        self._core.run.cancel("cancel() was called")

    # ------------------------------------------------------------ streams

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Text as it arrives: all of it (prompt and template text included), or one variable's."""
        return reading.text_iter(self._core, var_name)

    def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """`text_iter` for a running event loop; ``return_meta_data``: (text, meta) pairs of one variable."""
        return reading.text_async_iter(self._core, var_name, return_meta_data)

    # ------------------------------------------------------------ forks

    def fork(self, size: int = 1, position_ids_offset: object = None) -> PlainGroup:
        """``size`` branches that go on from here, each on its own, in parallel. ``position_ids_offset`` is ignored."""
        from .group import PlainGroup

        return PlainGroup(self._core, [State(core, owner=True) for core in self._children(size)])

    @contextmanager
    def copy(self, position_ids_offset: object = None) -> Iterator[State[Any]]:
        """One branch to try something on; its variables come back as lists of length 1."""
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            group.join()
