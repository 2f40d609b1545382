"""Text that comes to its end: after so many ids, a JSON value is brought to a close in as few as the schema allows.

A model may go on for ever where a schema sets no bound: strings, digits, items, members. What is generated past the
option ``close_after`` is still of the language, but of what the mask allows only that is kept which closes something
or, where a value must come, begins a short one. Where none of that is allowed the mask is as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.constrain.base import Matcher

OUTSIDE, DIGIT, INSIDE, ESCAPED = range(4)
"""Where in the text: outside of strings, there behind a digit, in a string, behind a backslash there."""

QUOTE, BACKSLASH = 0x22, 0x5C
SHORT_VALUES = frozenset((b"null", b"0", b'""', b"[]", b"{}", b"true", b"false"))
BRACKETS = frozenset(b"]}")


@dataclass(frozen=True)
class Closers:
    """Sets of ids as mask rows by where in the text, most wanted first, and the end ids."""

    wanted: tuple[tuple[NDArray[np.uint32], ...], ...]
    ends: NDArray[np.uint32]


def closers_of(table: Sequence[bytes], end_ids: Sequence[int], words: int) -> Closers:
    def row(ids: Iterable[int]) -> NDArray[np.uint32]:
        bits = np.zeros(words, np.uint32)
        for token in ids:
            bits[token >> 5] |= np.uint32(1 << (token & 31))
        return bits

    def where(kept: Iterable[bool]) -> NDArray[np.uint32]:
        return row(token for token, keep in enumerate(kept) if keep)

    brackets = where(bool(text) and BRACKETS.issuperset(text) for text in table)
    quote = where(text == b'"' for text in table)
    outside = (brackets, where(text in SHORT_VALUES for text in table), quote)
    digit = (brackets, where(text[:1] == b"," for text in table))
    inside = (
        where(len(text) > 1 and text[0] == QUOTE and BRACKETS.issuperset(text[1:]) for text in table),
        quote,
        where(text[:1] == b'"' for text in table),
    )
    return Closers((outside, digit, inside, ()), row(end_ids))


class ClosingMatcher:
    """See ``base.Matcher``. Wraps a matcher of JSON text. ``_places[n]``: where in the text after n ids."""

    def __init__(self, inner: Matcher, after: int, closers: Closers, table: Sequence[bytes]) -> None:
        self._inner = inner
        self._after = after
        self._closers = closers
        self._table = table
        self._places = [OUTSIDE]

    def advance(self, ids: Sequence[int]) -> bool:
        if not self._inner.advance(ids):
            return False
        for token in ids:
            self._places.append(_followed(self._places[-1], self._table[token]))
        return True

    def forced(self) -> list[int]:
        return self._inner.forced()

    def fill_mask(self, row: NDArray[np.uint32]) -> None:
        self._inner.fill_mask(row)
        if len(self._places) <= self._after:
            return
        for wanted in (self._closers.ends, *self._closers.wanted[self._places[-1]]):
            kept = row & wanted
            if kept.any():
                row[:] = kept
                return

    def rollback(self, count: int) -> None:
        self._inner.rollback(count)
        if count:
            del self._places[-count:]

    def fork(self) -> ClosingMatcher:
        twin = ClosingMatcher(self._inner.fork(), self._after, self._closers, self._table)
        twin._places = self._places.copy()
        return twin

    @property
    def can_end(self) -> bool:
        return self._inner.can_end

    @property
    def finished(self) -> bool:
        return self._inner.finished


def _followed(place: int, text: bytes) -> int:
    """Where in the text after some more of it."""
    for byte in text:
        if place == ESCAPED:
            place = INSIDE
        elif place == INSIDE:
            place = OUTSIDE if byte == QUOTE else ESCAPED if byte == BACKSLASH else INSIDE
        else:
            place = INSIDE if byte == QUOTE else DIGIT if 0x30 <= byte <= 0x39 else OUTSIDE
    return place
