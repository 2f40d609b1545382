"""First rules: unknown formats are annotations; what the engine cannot enforce is refused by keyword and pointer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ramet.runtime.protocol.errors import UnsupportedConstraint

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))

REFUSED = frozenset(
    (
        "if",
        "not",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$dynamicRef",
    )
)

MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keywords whose value maps names to schemas."""

DATA = frozenset(("enum", "const", "default", "examples", "example"))
"""Keywords whose value is data, not a schema."""


def normalise(schema: object, *, flexible: bool) -> str:
    """The engine's grammar for ``schema`` (a decoded JSON document)."""
    from llguidance import LLMatcher

    cleaned = _clean(schema, "")
    if cleaned is True:
        cleaned = {}
    options: JsonCompileOptions = {"whitespace_flexible": False}
    if flexible:
        options = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}
    return LLMatcher.grammar_from_json_schema(json.dumps(cleaned), overrides=options)


def _clean(node: object, pointer: str) -> object:
    if isinstance(node, list):
        return [_clean(item, f"{pointer}/{index}") for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    cleaned: dict[str, object] = {}
    for key, value in node.items():
        here = f"{pointer}/{_escape(key)}"
        if key in MAPS and isinstance(value, dict):
            cleaned[key] = {name: _clean(child, f"{here}/{_escape(name)}") for name, child in value.items()}
        elif key in DATA:
            cleaned[key] = value
        elif (key == "format" and value not in FORMATS) or (key == "uniqueItems" and value is False):
            continue
        elif key in REFUSED:
            raise UnsupportedConstraint(f"{key} at {here} cannot be enforced", keyword=key, pointer=here)
        else:
            cleaned[key] = _clean(value, here)
    return cleaned


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
