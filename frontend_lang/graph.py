"""A compiled program: data that can be sent, stored and run anywhere.

Branches are numbered from 0 (the root of the program), slots are the values that calls make. Ops stand in the order in
which the body wrote them; a text that quotes a value waits for it, everything else runs as soon as its branch allows.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from ramet.runtime.protocol.messages import ConstraintSpec

VERSION = 2


class Ref(Struct, frozen=True, tag="ref", omit_defaults=True):
    """A value that is known only when the program runs: an argument, or slot ``slot`` (item ``item`` of a list)."""

    argument: str = ""
    slot: int = -1
    item: int = -1


class Op(Struct, frozen=True, tag=True, omit_defaults=True):
    pass


class TextOp(Op, frozen=True, tag="text"):
    """``parts``: strings and references, joined. ``file``: where ``line`` is, if not in the graph's own file."""

    branch: int
    parts: tuple[str | Ref, ...]
    line: int = 0
    file: str = ""


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it; its function stays with whoever runs the program."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolUseSpec(Struct, frozen=True):
    """See ``tools.ToolUse``."""

    tools: tuple[ToolSpec, ...]
    max_rounds: int
    choice: str
    errors: str


class ToolsOp(Op, frozen=True, tag="tools"):
    """Tell the model of the tools."""

    branch: int
    tools: tuple[ToolSpec, ...]
    line: int = 0
    file: str = ""


class GenOp(Op, frozen=True, tag="gen"):
    """``options``: sampling options that the call gives. ``whole``: its constraint decides where the text ends."""

    branch: int
    slot: int
    name: str | None = None
    options: dict[str, Any] = {}
    constraint: ConstraintSpec | None = None
    what: str = ""
    whole: bool = False
    line: int = 0
    file: str = ""
    tools: ToolUseSpec | None = None


class SelectOp(Op, frozen=True, tag="select"):
    branch: int
    slot: int
    name: str | None
    choices: tuple[str, ...]
    method: str = "token_length_normalized"
    line: int = 0
    file: str = ""


class RoleOp(Op, frozen=True, tag="role"):
    """``begin``: opens the role, else closes it."""

    branch: int
    role: str
    begin: bool


class ScopeOp(Op, frozen=True, tag="scope"):
    branch: int
    name: str
    begin: bool
    slot: int = -1


class SetOp(Op, frozen=True, tag="set"):
    """``state[name] = value``; the value is described as a returned one."""

    branch: int
    name: str
    value: Any


class ReadOp(Op, frozen=True, tag="read"):
    """The body reads these values (``typed``: parsed), or waits for all of the branch (no slots): where one has failed,
    the body ends here with its error."""

    branch: int
    slots: tuple[int, ...] = ()
    typed: bool = False


class OpenOp(Op, frozen=True, tag="open"):
    """A program called inside this one: a new root."""

    branch: int
    program: str


class ForkOp(Op, frozen=True, tag="fork"):
    branch: int
    children: tuple[int, ...]


class JoinOp(Op, frozen=True, tag="join"):
    """``mode``: gather or concatenate."""

    branch: int
    children: tuple[int, ...]
    mode: str = "gather"


class ChooseOp(Op, frozen=True, tag="choose"):
    """Go on with the ops of the choice that ``slot`` (a select) became."""

    slot: int
    cases: dict[str, Block]


class Block(Struct, frozen=True, omit_defaults=True):
    """Ops, and what the body returns at their end (unless a ChooseOp is last)."""

    ops: tuple[
        TextOp | ToolsOp | GenOp | SelectOp | RoleOp | ScopeOp | SetOp | ReadOp | OpenOp | ForkOp | JoinOp | ChooseOp,
        ...,
    ]
    returns: Any = None


class Graph(Struct, frozen=True, omit_defaults=True):
    """``arguments``: names of those that a run must give; ``defaults``: JSON values for the others."""

    name: str
    file: str
    arguments: tuple[str, ...]
    body: Block
    defaults: dict[str, Any] = {}
    version: int = VERSION

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Graph:
        """Raises ValueError for anything that is no graph of this version."""
        graph = msgspec.json.decode(text, type=Graph)
        if graph.version != VERSION:
            raise ValueError(f"a compiled program of version {graph.version}; this is version {VERSION}")
        return graph

    def count(self) -> int:
        """Calls of the model on the longest way through."""
        return _count(self.body)


def _count(block: Block) -> int:
    total = 0
    for op in block.ops:
        if isinstance(op, (GenOp, SelectOp)):
            total += 1
        elif isinstance(op, ChooseOp):
            total += max(_count(case) for case in op.cases.values())
    return total
