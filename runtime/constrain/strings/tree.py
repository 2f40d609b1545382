"""What a parsed pattern looks like before its assertions are worked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from ramet.runtime.constrain.strings.chars import CharSet

AnchorKind = Literal["begin", "end", "boundary", "inside"]


@dataclass(frozen=True, slots=True)
class One:
    """One character of a set."""

    set: CharSet


@dataclass(frozen=True, slots=True)
class Run:
    """Parts one after another."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Tree
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    kind: AnchorKind


@dataclass(frozen=True, slots=True)
class Ahead:
    """Look-ahead."""

    part: Tree
    negative: bool


Tree = Union[One, Run, Either, Repeat, Anchor, Ahead]  # noqa: UP007  (evaluated on Python 3.10 too)


class PatternError(ValueError):
    """The pattern is not well formed."""


class PatternUnsupported(ValueError):
    """The pattern is well formed but not regular, or uses a construct that is not supported."""
