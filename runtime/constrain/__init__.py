"""Constraints: JSON Schemas, regexes, choices and grammars as token masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramet.runtime.constrain.compiler import compile

from ramet.runtime.constrain.base import CompiledConstraint, Matcher

__all__ = ["CompiledConstraint", "Matcher", "compile"]


def __getattr__(name: str) -> Any:
    """The compiler comes with its first use: who only holds matchers starts faster without it."""
    if name != "compile":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ramet.runtime.constrain.compiler import compile

    return compile
