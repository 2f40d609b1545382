"""Where schemas stand inside a JSON Schema: by the place of a keyword, for fields may have any name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

_ONE = frozenset(
    (
        *("items", "additionalItems", "unevaluatedItems", "contains", "contentSchema"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("if", "then", "else", "not"),
    )
)
_LISTS = frozenset(("items", "prefixItems", "allOf", "anyOf", "oneOf"))
_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))


def with_parts(schema: Mapping[str, object], change: Callable[[object], object]) -> dict[str, object]:
    """``schema`` with each schema that stands directly in it changed; values (const, default, ...) stay as they are."""
    return {keyword: _changed(keyword, value, change) for keyword, value in schema.items()}


def _changed(keyword: str, value: object, change: Callable[[object], object]) -> object:
    if keyword in _BY_NAME and isinstance(value, Mapping):
        # Of dependencies, some are lists of names.
        return {name: part if isinstance(part, list) else change(part) for name, part in value.items()}
    if keyword in _LISTS and isinstance(value, (list, tuple)):
        return [change(part) for part in value]
    return change(value) if keyword in _ONE else value


def parts(schema: Mapping[str, object]) -> Iterator[object]:
    """The schemas that stand directly in ``schema``."""
    found: list[object] = []
    with_parts(schema, found.append)
    return iter(found)
