"""Sets of code points: sorted, disjoint, inclusive ranges. Surrogates are never members: UTF-8 cannot spell them."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby

LAST = 0x10FFFF
ASSIGNED = 0x3FFFF
TAGS = (0xE0000, 0xE0FFF)
PRIVATE = 0xF0000
"""Outside of the tags, planes 4 to 14 hold nothing, and planes 15 and 16 are for private use."""

SURROGATES = (0xD800, 0xDFFF)


class CharSet:
    """``ranges``: (first, last), ascending, with a gap between neighbours."""

    __slots__ = ("_hash", "ranges")

    def __init__(self, ranges: tuple[tuple[int, int], ...]) -> None:
        self.ranges = ranges
        self._hash = hash(ranges)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, CharSet) and self._hash == other._hash and self.ranges == other.ranges

    def __repr__(self) -> str:
        return f"CharSet({self.ranges!r})"

    def __contains__(self, point: int) -> bool:
        index = bisect_right(self.ranges, (point, LAST + 1)) - 1
        return index >= 0 and point <= self.ranges[index][1]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: CharSet) -> CharSet:
        return charset([*self.ranges, *other.ranges])

    def __invert__(self) -> CharSet:
        return _complement(self)

    def __and__(self, other: CharSet) -> CharSet:
        return ~(~self | ~other)

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    @property
    def size(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def lowest(self) -> int:
        return self.ranges[0][0]


@lru_cache(maxsize=4096)
def _complement(given: CharSet) -> CharSet:
    gaps = []
    start = 0
    for first, last in given.ranges:
        if first > start:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= LAST:
        gaps.append((start, LAST))
    return charset(gaps)


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Join overlapping and touching ranges; leave the surrogates out."""
    merged: list[list[int]] = []
    for first, last in sorted(ranges):
        for low, high in _without_surrogates(first, last):
            if merged and low <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
    return CharSet(tuple((low, high) for low, high in merged))


def _without_surrogates(first: int, last: int) -> list[tuple[int, int]]:
    if last < SURROGATES[0] or first > SURROGATES[1]:
        return [(first, last)]
    parts = [(first, SURROGATES[0] - 1), (SURROGATES[1] + 1, last)]
    return [(low, high) for low, high in parts if low <= high]


def chars(text: str) -> CharSet:
    return charset((ord(char), ord(char)) for char in text)


ALL = charset([(0, LAST)])
NONE = CharSet(())
DIGIT = charset([(0x30, 0x39)])
WORD = charset([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE_ASCII = chars(" \t\n\r\f\v")
SPACE = SPACE_ASCII | chars("\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff") | charset([(0x2000, 0x200A)])
NEWLINES = chars("\n\r\u2028\u2029")
CONTROL = charset([(0, 0x1F)])


@lru_cache(maxsize=64)
def category(name: str) -> CharSet:
    """The code points of a Unicode general category (``L``, ``Lu``, ...). Empty for unknown names. Slow: 0.2 s once."""
    return charset(_category_table().get(name, ()))


@lru_cache(maxsize=1)
def _category_table() -> dict[str, list[tuple[int, int]]]:
    spans = [("Cn", ASSIGNED + 1, TAGS[0] - 1), ("Cn", TAGS[1] + 1, PRIVATE - 1), ("Co", PRIVATE, LAST)]
    for first, last in ((0, ASSIGNED), TAGS):
        place = first
        for name, group in groupby(map(unicodedata.category, map(chr, range(first, last + 1)))):
            size = sum(1 for _ in group)
            spans.append((name, place, place + size - 1))
            place += size
    table: dict[str, list[tuple[int, int]]] = {}
    for name, start, stop in spans:
        table.setdefault(name, []).append((start, stop))
        table.setdefault(name[0], []).append((start, stop))
    return table


_LONG_NAMES = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Punctuation": "P",
    "punct": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Alphabetic": "L",
}
_SCRIPTS = {
    "Latin": "LATIN",
    "Greek": "GREEK",
    "Cyrillic": "CYRILLIC",
    "Han": "CJK",
    "Hiragana": "HIRAGANA",
    "Katakana": "KATAKANA",
    "Arabic": "ARABIC",
    "Hebrew": "HEBREW",
    "Thai": "THAI",
    "Hangul": "HANGUL",
}


@lru_cache(maxsize=64)
def unicode_property(text: str) -> CharSet | None:
    """The set of ``\\p{text}``: general categories by short or long name, common scripts (letters only); else None."""
    name = text.split("=", 1)[-1] if text.startswith(("gc=", "General_Category=")) else text
    name = _LONG_NAMES.get(name, name)
    found = category(name)
    if found:
        return found
    if text.startswith(("Script=", "sc=", "Script_Extensions=", "scx=")):
        name = text.split("=", 1)[1]
    if name == "ASCII":
        return charset([(0, 0x7F)])
    if name in ("Any", "any"):
        return ALL
    if name in _SCRIPTS:
        return _script(_SCRIPTS[name])
    return None


def _script(word: str) -> CharSet:
    letters = category("L")
    return charset(
        (point, point)
        for first, last in letters.ranges
        for point in range(first, last + 1)
        if unicodedata.name(chr(point), "").startswith(word)
    )
