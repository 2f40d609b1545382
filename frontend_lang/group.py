"""The branches of one fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .core import StateCore
from .execute import concatenate_op
from .expr import Appendable, Expr
from .slot import JoinedSlot
from .where import caller

if TYPE_CHECKING:
    from .state import State, _StateBase  # noqa: F401

S = TypeVar("S", bound="_StateBase[Any]")

GATHER = ("gather_variable", "gather")
CONCATENATE = ("concate_and_append", "concatenate", "concatenate_and_append")


class StateGroup(Generic[S]):
    """Indexed, iterated and counted like a list. ``group += x`` appends x to every branch; x may also be a list with
    one entry per branch, or a function of the branch's index."""

    def __init__(self, parent: StateCore, states: Sequence[S]) -> None:
        self._parent = parent
        self.states: list[S] = list(states)
        self._joined = False

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[S]:
        return iter(self.states)

    def __getitem__(self, index: int) -> S:
        return self.states[index]

    def __setitem__(self, index: int, value: S) -> None:
        # ``group[i] += x`` stores the same state again.
        if value is not self.states[index]:
            raise TypeError("the branches of a fork cannot be replaced")

    def __iadd__(self, other: Appendable | Sequence[Appendable] | Callable[[int], Appendable]) -> StateGroup[S]:
        self.append(other)
        return self

    def append(self, other: Appendable | Sequence[Appendable] | Callable[[int], Appendable]) -> None:
        """What ``+=`` does."""
        if isinstance(other, (str, Expr)) or other is None:
            for state in self.states:
                state._append(other)
        elif callable(other):
            for index, state in enumerate(self.states):
                state._append(other(index))
        else:
            items = list(other)
            if len(items) != len(self.states):
                raise ValueError(f"{len(items)} things for {len(self.states)} branches: give one for each")
            for state, item in zip(self.states, items, strict=True):
                state._append(item)

    def join(self, mode: str = "gather_variable") -> None:
        """End the branches; returns at once.

        ``gather_variable``: every variable that a branch has written since the fork becomes a list in the parent, in
        the order of the branches, None for a branch without it. It replaces a value that the parent had.
        ``concatenate``: the text that each branch has added since the fork is appended to the parent, in order.
        """
        cores = [state._core for state in self.states]
        if mode in CONCATENATE:
            self._finish(cores)
            self._parent.enqueue(concatenate_op(cores))
        elif mode in GATHER:
            self._finish(cores)
            self._gather(cores)
        else:
            raise ValueError(f"join mode must be {GATHER[0]!r} or {CONCATENATE[0]!r}, got {mode!r}")
        for core in cores:
            core.end()

    def _finish(self, cores: list[StateCore]) -> None:
        if self._joined:
            return
        self._joined = True
        for core in cores:
            core.joined = True
        self._parent.children = (*self._parent.children, *cores)

    def _gather(self, cores: list[StateCore]) -> None:
        where = caller()
        names = dict.fromkeys(name for core in cores for name in core.own)
        for name in names:
            slots = [core.own.get(name) for core in cores]
            self._parent.declare(name, JoinedSlot(slots, where))


class PlainGroup(StateGroup["State[Any]"]):
    """`StateGroup` of a plain program."""

    def __iadd__(self, other: Appendable | Sequence[Appendable] | Callable[[int], Appendable]) -> PlainGroup:
        self.append(other)
        return self

    def gather(self, name: str, errors: str = "raise") -> list[Any]:
        """The variable of every branch, in order; waits. ``errors="return"``: an exception stands where one failed."""
        if errors not in ("raise", "return"):
            raise ValueError(f"errors must be 'raise' or 'return', got {errors!r}")
        values: list[Any] = []
        for state in self.states:
            try:
                values.append(state[name])
            except Exception as error:
                if errors == "raise":
                    raise
                values.append(error)
        return values
