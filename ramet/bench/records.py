"""Whether an answer of W6 follows its schema: written out by hand, since not every machine has a validator."""

from __future__ import annotations

import json
from collections.abc import Callable

_TONES = ("plain", "formal", "friendly", "legal")


def is_valid(text: str) -> bool:
    """True for exactly the texts that parse as JSON and follow ``workloads.SCHEMA``."""
    try:
        record = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(record, dict) and record.keys() == _FIELDS.keys() and all(_FIELDS[k](v) for k, v in record.items())
    )


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _text(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and low <= len(value) <= high


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _clarity(value: object) -> bool:
    return _number(value) and value in (1, 2, 3, 4, 5)


def _keywords(value: object) -> bool:
    word = _text(2, 16)
    return isinstance(value, list) and 1 <= len(value) <= 3 and all(map(word, value))


_FIELDS: dict[str, Callable[[object], bool]] = {
    "subject": _text(3, 48),
    "tone": lambda value: value in _TONES,
    "clarity": _clarity,
    "names_a_person": lambda value: isinstance(value, bool),
    "share_of_prose": _number,
    "keywords": _keywords,
}
