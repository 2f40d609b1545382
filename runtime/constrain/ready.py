"""A constraint half-way: lowered in one process, built in another.

Lowering is Python's work and takes up to the whole of a compile's time; a worker that did it would hold up its steps.
What is left to the worker is the engine's own compile, which does not hold the interpreter, or reading a table.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from ramet.runtime.constrain.scanner import WatchPlan
from ramet.runtime.constrain.strings.wire import LangData
from ramet.runtime.protocol.errors import InvalidConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

KIND = "lowered"
"""Of a ConstraintSpec whose text is a Ready; between processes of one runtime only."""


class Ready(msgspec.Struct, frozen=True):
    """``grammar``, ``plan`` and ``close_after``: for the engine lane. ``lang``: for the table lane."""

    lane: Literal["engine", "table"]
    grammar: str = ""
    plan: WatchPlan | None = None
    lang: LangData | None = None
    close_after: int = 0


def to_spec(ready: Ready) -> ConstraintSpec:
    return ConstraintSpec(KIND, msgspec.json.encode(ready).decode())


def from_spec(spec: ConstraintSpec) -> Ready:
    try:
        return msgspec.json.decode(spec.text, type=Ready)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidConstraint(f"a lowered constraint does not decode: {error}") from None
