"""When two JSON values are the same."""

from __future__ import annotations


def key_of(value: object) -> object:
    """Hashable, equal exactly for equal JSON values (1 and 1.0 are, 1 and true are not)."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return ("list", tuple(map(key_of, value)))
    if isinstance(value, dict):
        return ("dict", frozenset((name, key_of(item)) for name, item in value.items()))
    return value
