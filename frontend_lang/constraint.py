"""What `gen` may be bound to: a regex, a JSON Schema (dict, JSON text, pydantic model, type), a grammar, a dtype."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramet.runtime.protocol.errors import InvalidConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"[^"\\\n\r]*"'

# Faults that every dialect of regular expressions refuses: these are reported where the expression is written.
_SURE_FAULTS = ("unterminated character set", "missing )", "unbalanced parenthesis", "nothing to repeat")


@dataclass(frozen=True, slots=True)
class Constraint:
    """``spec`` goes to the engine; ``what`` names it in messages; ``whole``: its end decides where the text ends."""

    spec: ConstraintSpec
    what: str
    whole: bool = False


def from_regex(pattern: str) -> Constraint:
    """Raises InvalidConstraint at once for a pattern that no dialect accepts."""
    if not isinstance(pattern, str):
        raise TypeError(f"regex must be a str, got {type(pattern).__name__}")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        if str(error).startswith(_SURE_FAULTS):
            raise InvalidConstraint(f"regex {pattern!r} does not parse: {error}") from None
    return Constraint(ConstraintSpec("regex", pattern), "regex")


def from_grammar(grammar: str) -> Constraint:
    """A Lark grammar, or GBNF (rules written with ``::=``)."""
    if not isinstance(grammar, str):
        raise TypeError(f"grammar must be a str, got {type(grammar).__name__}")
    kind = "gbnf" if "::=" in grammar else "lark"
    return Constraint(ConstraintSpec(kind, grammar), "grammar", whole=True)


def from_schema(schema: Any, whitespace: str | None = None) -> tuple[Constraint, Callable[[str], Any]]:
    """(constraint, parser of the text): a pydantic model parses to itself, any other schema to Python's JSON values."""
    parse: Callable[[str], Any] = json.loads
    if isinstance(schema, str):
        try:
            document = json.loads(schema)
        except json.JSONDecodeError as error:
            raise InvalidConstraint(f"schema is not JSON: {error}") from None
    elif isinstance(schema, (dict, bool)):
        document = schema
    elif hasattr(schema, "model_json_schema"):
        document, parse = schema.model_json_schema(), schema.model_validate_json
    else:
        document, parse = _from_type(schema)
    if not isinstance(document, (dict, bool)):
        raise InvalidConstraint(f"a JSON Schema is an object or a boolean, got {type(document).__name__}")
    spec = ConstraintSpec("json_schema", json.dumps(document, ensure_ascii=False), whitespace or "compact")
    return Constraint(spec, "schema", whole=True), parse


def _from_type(annotation: Any) -> tuple[Any, Callable[[str], Any]]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        return adapter.json_schema(), adapter.validate_json
    except PydanticSchemaGenerationError:
        raise TypeError(
            f"schema must be a dict, JSON text, a pydantic model or a type that pydantic knows, got {annotation!r}"
        ) from None


def _number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: kind(text.strip())


def _quoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def from_dtype(dtype: type | str) -> tuple[Constraint, Callable[[str], Any], tuple[str, ...]]:
    """(constraint, parser, stops) of ``int``, ``float``, ``bool`` or ``str``, or their names."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    blanks = (" ", "\n")
    table: dict[str, tuple[str, Callable[[str], Any], tuple[str, ...]]] = {
        "int": (REGEX_INT, _number(int), blanks),
        "float": (REGEX_FLOAT, _number(float), blanks),
        "bool": (REGEX_BOOL, lambda text: text.strip() == "True", ()),
        "str": (REGEX_STR, _quoted, ()),
    }
    if name not in table:
        raise ValueError(f"dtype must be int, float, bool or str, got {dtype!r}; for anything else use schema=")
    pattern, parse, stops = table[name]
    return Constraint(ConstraintSpec("regex", pattern), f"dtype={name}"), parse, stops
