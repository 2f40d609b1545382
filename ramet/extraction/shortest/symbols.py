"""What the grammar of a schema lets follow, symbol by symbol.

A symbol is either a step of bytes (``Literal``, ``Text``, ``Inside``, ``Copy``) or stands for alternatives, each a row
of symbols (``ValueOf``, ``Members``, ``Items``, ``Item``). Together they allow all that the constraint allows, and a
bit more: long repetitions have no upper bound, and conditions between the members of an object are not looked at. So a
distance to the end that is measured here is never longer than the true one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ramet.runtime.constrain.automaton import partition, utf8_ranges
from ramet.runtime.constrain.schema.array_shape import ArrayShape
from ramet.runtime.constrain.schema.context import Conjunction
from ramet.runtime.constrain.schema.object_shape import ObjectShape
from ramet.runtime.constrain.strings.lang import ANY, Alt, Both, Lang, Rep, Seq, alt, both, rep, seq
from ramet.runtime.constrain.strings.write import ESCAPED, SHORT
from ramet.runtime.protocol.errors import ConstraintTooComplex

_BOUNDED = 4
"""Repetitions with more room than this between their bounds are taken to have no upper one: longer is never shorter."""


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly these bytes, at least one."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Text:
    """What is left of the text of a number, or of what stands in a JSON string (``quoted``)."""

    lang: Lang
    quoted: bool


@dataclass(frozen=True, slots=True)
class Inside:
    """Within a character: byte ranges still to come, and the language behind them."""

    sequences: frozenset[Spelled]
    quoted: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """A string that is copied from a text, of which ``content`` is written."""

    constant: str
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class ValueOf:
    conjunction: Conjunction


@dataclass(frozen=True, slots=True)
class Members:
    """The rest of an object: keys from number ``index`` on, after ``count`` members (counted as far as it matters)."""

    shape: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Items:
    """The rest of an array after ``count`` items (counted as far as it matters)."""

    shape: int
    count: int


@dataclass(frozen=True, slots=True)
class Item:
    """Item number ``count`` of an array, and what follows it."""

    shape: int
    count: int


Symbol: TypeAlias = "Literal | Text | Inside | Copy | ValueOf | Members | Items | Item"
Row: TypeAlias = "tuple[Symbol, ...]"
Spelled: TypeAlias = "tuple[tuple[tuple[int, int], ...], Lang]"
"""Byte ranges, one after another, and the language behind them."""

Step: TypeAlias = "tuple[int, int, Row]"
"""First byte, last byte, and what then stands in the symbol's place."""


def unbounded(lang: Lang) -> Lang:
    """``lang`` and more: long repetitions may go on for ever, so that their automaton is small."""
    if isinstance(lang, Rep):
        high = lang.high if lang.high is not None and lang.high <= lang.low + _BOUNDED else None
        return rep(unbounded(lang.part), lang.low, high)
    if isinstance(lang, Seq):
        return seq(map(unbounded, lang.parts))
    if isinstance(lang, Alt):
        return alt(map(unbounded, lang.parts))
    if isinstance(lang, Both):
        return both(map(unbounded, lang.parts))
    return lang


def text_steps(symbol: Text | Inside) -> Iterator[Step]:
    """The first bytes of a text, a character of which JSON spells in one way (see ``strings.write``)."""
    sequences = symbol.sequences if isinstance(symbol, Inside) else _sequences(symbol.lang, symbol.quoted)
    longer: dict[int, list[Spelled]] = {}
    for (head, *rest), target in sequences:
        if not rest:
            yield head[0], head[1], (Text(target, symbol.quoted),)
            continue
        for byte in range(head[0], head[1] + 1):
            longer.setdefault(byte, []).append((tuple(rest), target))
    for byte, after in longer.items():
        yield byte, byte, (Inside(frozenset(after), symbol.quoted),)


def _sequences(lang: Lang, quoted: bool) -> Iterable[Spelled]:
    """Byte ranges that spell each first character of the language, and what may follow it."""
    try:
        groups = partition(lang)
    except ConstraintTooComplex:
        groups = partition(ANY)
    found: list[Spelled] = []
    for group, target in groups:
        plain = group - ESCAPED if quoted else group
        for first, last in plain.ranges:
            if first < 0x80:
                found.append((((first, min(last, 0x7F)),), target))
            if last >= 0x80:
                found += [(ranges, target) for ranges in utf8_ranges(max(first, 0x80), last)]
        for first, last in (group & ESCAPED).ranges if quoted else ():
            found += [(tuple((byte, byte) for byte in _escape(point)), target) for point in range(first, last + 1)]
    return found


def _escape(point: int) -> bytes:
    return (f"\\{SHORT[point]}" if point in SHORT else f"\\u{point:04x}").encode()


def object_rows(shape: ObjectShape, symbol: Members, keys: Sequence[str], heads: Sequence[bytes]) -> Iterator[Row]:
    """Ways to go on in an object. keys: those that may be there, in order; heads: as JSON spells them, with a colon."""
    comma = b"," if symbol.count else b""
    # One member is told from none (the comma); above that they are counted only as far as there is a lower bound.
    count = min(symbol.count + 1, max(shape.low, 1))
    for index in range(symbol.index, len(keys)):
        for way in shape.ways[keys[index]]:
            yield Literal(comma + heads[index]), ValueOf(way.value), Members(symbol.shape, index + 1, count)
        if keys[index] in shape.required:
            return
    for item in shape.classes:
        head = Literal(comma + b'"'), Text(unbounded(item.lang), True), Literal(b'":')
        yield *head, ValueOf(item.value), Members(symbol.shape, len(keys), count)
    if symbol.count >= shape.low:
        yield (Literal(b"}"),)


def array_rows(shape: ArrayShape, symbol: Items) -> Iterator[Row]:
    """Ways to go on in an array."""
    if symbol.count >= shape.low:
        yield (Literal(b"]"),)
    if symbol.count < len(shape.prefix) or shape.rest:
        item = Item(symbol.shape, symbol.count)
        yield (Literal(b","), item) if symbol.count else (item,)


def item_rows(shape: ArrayShape, symbol: Item) -> Iterator[Row]:
    in_prefix = symbol.count < len(shape.prefix)
    count = min(symbol.count + 1, max(len(shape.prefix), shape.low, 1))
    for move in shape.prefix[symbol.count] if in_prefix else shape.rest:
        yield ValueOf(move.value), Items(symbol.shape, count)
