"""How a language is written as a terminal of the engine's grammar: inside JSON quotes, or as it is.

JSON text has one spelling per character here: the short escape where JSON has one, ``\\u00xx`` for other control
characters, the character itself otherwise. One spelling keeps intersection, complement and length exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby

from ramet.runtime.constrain.strings.chars import ALL, CONTROL, CharSet, chars
from ramet.runtime.constrain.strings.lang import ANY, CHAR, Alt, Both, Chars, Lang, Not, Rep, Seq, Texts

SHORT = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
"""Characters with a short escape in JSON."""

ESCAPED = CONTROL | chars('"\\')
"""Characters that JSON text cannot hold as they are."""

CHAR_NAME = "CHAR"
CHARS = "CHARS"

MANY = 16
"""Longer lists of texts are written as a tree."""

_META = frozenset("\\.+*?()|[]{}^$#&-~/\"'<>:=!,@%`; ")


class Writer:
    """``json``: write each character as JSON text spells it."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.universe = CHARS if json else f"/{self._regex(ANY)}/"

    def definitions(self) -> list[str]:
        """Terminals that others refer to: reading the same class of characters over and over takes the engine long."""
        return [f"{CHAR_NAME}: /{self._regex(CHAR)}/", f"{CHARS}: {CHAR_NAME}*"] if self.json else []

    def terminal(self, lang: Lang) -> str:
        """The right-hand side of a terminal definition (without the quotes of a JSON string)."""
        return _written(self.json, lang)

    def string(self, lang: Lang) -> str:
        """The terminal of a whole JSON string: quotes included."""
        return self.quoted(lang)('"', '"')

    def quoted(self, lang: Lang) -> Callable[[str, str], str]:
        """The terminal between two texts of punctuation."""
        expression = _written(self.json, lang)
        if expression.startswith("/") and expression.endswith("/"):
            return lambda front, back: f"/{front}{expression[1:-1]}{back}/"
        return lambda front, back: f"{json.dumps(front)} {expression} {json.dumps(back)}"

    def expression(self, lang: Lang) -> str:
        """Plain languages are one regex between slashes, others an expression of several terminals."""
        if self._named(lang):
            assert isinstance(lang, Rep)
            return CHARS if lang == ANY else f"{CHAR_NAME}{{{lang.low},{'' if lang.high is None else lang.high}}}"
        if lang.plain:
            return f"/{self._regex(lang)}/"
        if isinstance(lang, Not):
            return f"({self.universe} & ~({self.expression(lang.part)}))"
        if isinstance(lang, Both):
            positive = [part for part in lang.parts if not isinstance(part, Not)]
            negative = [part.part for part in lang.parts if isinstance(part, Not)]
            items = [self.expression(part) for part in positive] or [self.universe]
            items += [f"~({self.expression(part)})" for part in negative]
            return f"({' & '.join(items)})"
        if isinstance(lang, Alt):
            return f"({' | '.join(self.expression(part) for part in lang.parts)})"
        if isinstance(lang, Rep):
            high = "" if lang.high is None else str(lang.high)
            return f"({self.expression(lang.part)}){{{lang.low},{high}}}"
        if isinstance(lang, Seq):
            return f"({' '.join(self._grouped(lang))})"
        raise AssertionError(lang)

    def _named(self, lang: Lang) -> bool:
        """Whether the language is written with the names of ``definitions``."""
        return self.json and isinstance(lang, Rep) and lang.part == CHAR

    def _grouped(self, lang: Seq) -> list[str]:
        """Parts of a sequence; neighbours without algebra share one regex."""
        items: list[str] = []
        run: list[Lang] = []
        for part in lang.parts:
            if part.plain:
                run.append(part)
                continue
            if run:
                items.append(f"/{self._regex(Seq(tuple(run)))}/")
                run = []
            items.append(self.expression(part))
        if run:
            items.append(f"/{self._regex(Seq(tuple(run)))}/")
        return items

    def _regex(self, lang: Lang) -> str:
        if isinstance(lang, Chars):
            return _json_char(lang.set) if self.json else _class(lang.set)
        if isinstance(lang, Texts):
            return self._listing(lang)
        if isinstance(lang, Seq):
            return "".join(self._regex(part) for part in lang.parts)
        if isinstance(lang, Alt):
            return f"(?:{'|'.join(map(self._regex, lang.parts))})"
        if isinstance(lang, Rep):
            part = self._regex(lang.part)
            if not isinstance(lang.part, (Chars, Alt)) and not _grouped_texts(lang.part):
                part = f"(?:{part})"
            return part + _count(lang.low, lang.high)
        raise AssertionError(lang)

    def _listing(self, lang: Texts) -> str:
        if not lang.texts:
            return r"[^\s\S]"
        if len(lang.texts) > MANY:
            return self._tree(sorted(lang.texts))
        written = [self.spell(text) for text in lang.texts]
        return written[0] if len(written) == 1 else f"(?:{'|'.join(written)})"

    def _tree(self, texts: list[str], start: int = 0) -> str:
        """Sorted texts from ``start`` on, common beginnings written once: long lists compile three times as fast."""
        if len(texts) == 1:
            return self.spell(texts[0][start:])
        shared = _shared(texts[0], texts[-1])
        groups = groupby(texts, key=lambda text: text[shared : shared + 1])
        branches = [self._tree(list(group), shared) for _, group in groups]
        return f"{self.spell(texts[0][start:shared])}(?:{'|'.join(branches)})"

    def spell(self, text: str) -> str:
        """A regex for exactly this text."""
        if self.json:
            text = json.dumps(text, ensure_ascii=False)[1:-1]
        return text if text.isalnum() and text.isascii() else "".join(_point(ord(char)) for char in text)


def _shared(left: str, right: str) -> int:
    """Length of the common beginning."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


@lru_cache(maxsize=512)
def _written(json: bool, lang: Lang) -> str:
    """Formats and patterns come again from schema to schema."""
    return Writer(json=json).expression(lang)


def _grouped_texts(lang: Lang) -> bool:
    return isinstance(lang, Texts) and len(lang.texts) > 1


def _count(low: int, high: int | None) -> str:
    if (low, high) == (0, None):
        return "*"
    if (low, high) == (1, None):
        return "+"
    if (low, high) == (0, 1):
        return "?"
    if high is None:
        return f"{{{low},}}"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


@lru_cache(maxsize=4096)
def _json_char(found: CharSet) -> str:
    parts = []
    raw = found - ESCAPED
    if raw:
        parts.append(_class(raw))
    short = [letter for point, letter in SHORT.items() if point in found]
    if short:
        parts.append(r"\\" + _letters(short))
    coded = [point for point in range(0x20) if point in found and point not in SHORT]
    for high in (0, 1):
        digits = [f"{point & 15:x}" for point in coded if point >> 4 == high]
        if digits:
            parts.append(rf"\\u00{high}" + _letters(digits))
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _letters(letters: list[str]) -> str:
    escaped = "".join(map(_point, map(ord, letters)))
    return escaped if len(letters) == 1 else f"[{escaped}]"


@lru_cache(maxsize=4096)
def _class(found: CharSet) -> str:
    if found == ALL:
        return r"(?s:.)"
    if len(found.ranges) == 1 and found.ranges[0][0] == found.ranges[0][1]:
        return _point(found.lowest)
    complement = ~found
    if len(complement.ranges) < len(found.ranges):
        return f"[^{_ranges(complement)}]"
    return f"[{_ranges(found)}]"


def _ranges(found: CharSet) -> str:
    parts = []
    for first, last in found.ranges:
        parts.append(_point(first))
        if last > first + 1:
            parts.append("-")
        if last > first:
            parts.append(_point(last))
    return "".join(parts)


def _point(point: int) -> str:
    char = chr(point)
    if char.isascii() and (char.isalnum() or char == "_"):
        return char
    if char in _META and char not in " '\"<>:=!,@%`;/#~&":
        return "\\" + char
    if 0x20 < point < 0x7F and char != "/" and char not in "#&~":
        return char
    return f"\\x{{{point:x}}}"


def raw_regex(lang: Lang) -> str:
    """A plain language as one regex in Rust's syntax."""
    return _written(False, lang)[1:-1]
