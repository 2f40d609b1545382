"""Fields that a schema does not require: who decides whether they are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

Json: TypeAlias = "Mapping[str, object]"
Optional: TypeAlias = Literal["model", "omit", "null"]
"""model (the default): the model may write the field or leave it out. omit: it is never written. null: it is always
written, with null where the document has nothing; such a null is taken out of the record again, unless the schema
allows it."""


def with_optional(schema: Json, mode: Optional) -> Json:
    """``schema`` with its fields that are not required treated as ``mode`` says, at every depth."""
    if mode == "model":
        return schema
    return _walk(schema, _omit if mode == "omit" else _require)


def without_nulls(schema: object, value: object) -> object:
    """``value`` without the fields that are null, not required, and not allowed to be null."""
    return _clean(schema, schema, value, 0)


def _walk(schema: Json, change: Callable[[dict[str, object]], None]) -> Json:
    result: dict[str, object] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, Mapping):
            result[key] = {
                name: _walk(part, change) if isinstance(part, Mapping) else part for name, part in value.items()
            }
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            result[key] = _walk(value, change)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            result[key] = [_walk(part, change) if isinstance(part, Mapping) else part for part in value]
        else:
            result[key] = value
    if isinstance(result.get("properties"), dict):
        change(result)
    return result


def _omit(schema: dict[str, object]) -> None:
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    properties = schema["properties"]
    assert isinstance(properties, dict)
    schema["properties"] = {name: part for name, part in properties.items() if name in names}
    # What is left out must not come back as a further property.
    if len(names) < len(properties) and "additionalProperties" not in schema:
        schema["additionalProperties"] = False


def _require(schema: dict[str, object]) -> None:
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    properties = schema["properties"]
    assert isinstance(properties, dict)
    schema["properties"] = {
        name: part if name in names or _takes_null(part) else {"anyOf": [part, {"type": "null"}]}
        for name, part in properties.items()
    }
    schema["required"] = list(properties)


def _takes_null(schema: object) -> bool:
    if not isinstance(schema, Mapping):
        return schema is True
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds):
        return True
    options = schema.get("anyOf")
    return isinstance(options, list) and any(map(_takes_null, options))


def _clean(schema: object, root: object, value: object, depth: int) -> object:
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > 32:
        return value
    options = schema.get("anyOf")
    if isinstance(options, list) and isinstance(value, (dict, list)):
        for option in options:
            value = _clean(option, root, value, depth + 1)
        return value
    properties = schema.get("properties")
    if isinstance(value, dict) and isinstance(properties, Mapping):
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        return {
            name: _clean(properties.get(name), root, inner, depth + 1)
            for name, inner in value.items()
            if not (inner is None and name in properties and name not in names and not _takes_null(properties[name]))
        }
    if isinstance(value, list):
        return [_clean(schema.get("items"), root, inner, depth + 1) for inner in value]
    return value


def resolved(schema: object, root: object) -> object:
    """What a reference inside of ``root`` points to; a schema that is none is given back."""
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema
