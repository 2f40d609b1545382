"""Records hold the fields that their schema lists, and no others.

JSON Schema allows further properties unless it is told not to, and a model that may invent fields will. What a closed
schema accepts, the given one accepts too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from ramet.runtime.frontend.schema_parts import parts

Json: TypeAlias = "Mapping[str, object]"

_SAYS_ITSELF = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "minProperties")
_COMBINES = ("allOf", "if", "then", "else", "not", "dependentSchemas", "$dynamicRef", "$recursiveRef")


def closed(schema: Json) -> Json:
    """``schema`` with ``additionalProperties: false`` at each object that lists properties and says nothing else about
    further ones. A schema that combines parts which are each open (allOf, if, ...) is left as it is: closing one part
    would exclude the properties of the others."""
    return schema if _combines(schema) else _close(schema)


def _combines(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return any(key in _COMBINES for key in value) or any(map(_combines, parts(value)))


def _close(schema: Json) -> Json:
    result: dict[str, object] = {key: _inside(key, value) for key, value in schema.items()}
    alone = not any(key in schema for key in (*_SAYS_ITSELF, "anyOf", "oneOf", "$ref"))
    if isinstance(schema.get("properties"), Mapping) and alone:
        result["additionalProperties"] = False
    return result


def _inside(key: str, value: object) -> object:
    """Where schemas stand in a schema. Values (enum, const, default, examples) are not schemas."""
    if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
        return {name: _close(part) if isinstance(part, Mapping) else part for name, part in value.items()}
    if key in ("items", "contains", "additionalItems") and isinstance(value, Mapping):
        return _close(value)
    if key in ("anyOf", "oneOf", "prefixItems", "items") and isinstance(value, list):
        return [_close(part) if isinstance(part, Mapping) else part for part in value]
    return value
