"""A JSON Schema in plain words: one line per field, for the instruction that a model reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TypeAlias

Schema: TypeAlias = "Mapping[str, object]"

_MAX_DEPTH = 6


def describe(schema: object) -> str:
    """Lines "- name (type): description", nested fields indented; empty where the schema lists no properties."""
    if not isinstance(schema, Mapping):
        return ""
    return "\n".join(_fields(schema, schema, 0))


def _fields(schema: Schema, root: Schema, depth: int) -> Iterator[str]:
    if depth >= _MAX_DEPTH:  # recursive models
        return
    properties = _resolve(schema, root).get("properties")
    if not isinstance(properties, Mapping):
        return
    for name, given in properties.items():
        if not isinstance(given, Mapping):
            continue
        field = _resolve(given, root)
        meaning = given.get("description") or field.get("description") or ""
        kind = _kind(field, root)
        yield f"{'  ' * depth}- {name}{f' ({kind})' if kind else ''}{f': {meaning}' if meaning else ''}"
        inner = _resolve(_items(field), root) if field.get("type") == "array" else field
        yield from _fields(inner, root, depth + 1)


def _kind(field: Schema, root: Schema) -> str:
    if isinstance(values := field.get("enum"), list):
        return "one of " + ", ".join(_literal(value) for value in values)
    if "const" in field:
        return f"always {_literal(field['const'])}"
    for keyword in ("anyOf", "oneOf"):
        if isinstance(options := field.get(keyword), list):
            kinds = [_kind(_resolve(option, root), root) for option in options if isinstance(option, Mapping)]
            return " or ".join(dict.fromkeys(kind for kind in kinds if kind))
    kind = field.get("type")
    if kind == "array":
        low, high = field.get("minItems"), field.get("maxItems")
        items = _kind(_resolve(_items(field), root), root)
        return f"list{_range(low, high)}{f' of {items}' if items not in ('', 'object') else ''}"
    if kind == "string":
        high = field.get("maxLength")
        copied = ", copied from the document" if "x-ramet-verbatim" in field else ""
        return (f"string of at most {high} characters" if isinstance(high, int) else "string") + copied
    if isinstance(kind, list):
        return " or ".join(map(str, kind))
    return str(kind) if isinstance(kind, str) else ""


def _range(low: object, high: object) -> str:
    if isinstance(low, int) and isinstance(high, int):
        return f" of {low} to {high}"
    if isinstance(high, int):
        return f" of at most {high}"
    return ""


def _items(field: Schema) -> Schema:
    items = field.get("items")
    return items if isinstance(items, Mapping) else {}


def _resolve(schema: Schema, root: Schema) -> Schema:
    """Follow local references (a bounded number: a chain may be a circle)."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: object = root
        for part in reference[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            break
        schema = found
    return schema


def _literal(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
