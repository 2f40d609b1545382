"""Constraints: JSON Schemas, regexes, choices and grammars as token masks."""

from ramet.runtime.constrain.base import CompiledConstraint, Matcher
from ramet.runtime.constrain.compiler import compile

__all__ = ["CompiledConstraint", "Matcher", "compile"]
