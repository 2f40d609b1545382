"""One step in the queue of a state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .slot import CallSlot
from .where import Where

if TYPE_CHECKING:
    from .core import StateCore


class Bound:
    """``function(core, *arguments)`` as a function of the core: a third of a closure's memory, of which each open call
    would hold several."""

    __slots__ = ("_arguments", "_function")

    def __init__(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self._function = function
        self._arguments = arguments

    def __call__(self, core: StateCore) -> Awaitable[None]:
        return self._function(core, *self._arguments)


@dataclass(slots=True)
class Op:
    """``work`` runs on the loop; ``slots`` fail if it does. ``always``: run even after an error (ends, forks).
    ``more``: it extends the branch, so that the call in front of it keeps its KV."""

    work: Callable[[StateCore], Awaitable[None]]
    slots: tuple[CallSlot, ...] = ()
    where: Where | None = None
    always: bool = False
    more: bool = True


@dataclass(slots=True)
class OpenMessage:
    """A role that is open, as the loop sees it."""

    role: str
    parts: list[str] = field(default_factory=list)
