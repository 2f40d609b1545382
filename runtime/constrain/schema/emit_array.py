"""Arrays written as rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ramet.runtime.constrain.schema.array_shape import ArrayShape, Move
from ramet.runtime.constrain.schema.parameter import BITS, Unary, call, condition, fold, raised
from ramet.runtime.constrain.strings.lang import NOTHING
from ramet.runtime.constrain.strings.walk import finite
from ramet.runtime.protocol.errors import ConstraintTooComplex

if TYPE_CHECKING:
    from ramet.runtime.constrain.schema.emit import Emitter

UNIQUE = 60
"""Bound of the different items that an array of unique items may have, to be counted in the grammar."""


def write_array(emitter: Emitter, name: str, shape: ArrayShape) -> None:
    if shape.unique is not None:
        listed = _listed(emitter, shape)
        if listed is not None:
            _write_unique(emitter, name, shape, listed)
            return
        emitter.unique.append(shape)
    if shape.tallies:
        _Tallied(emitter, name, shape).write()
    else:
        _write_plain(emitter, name, shape)


def _either(emitter: Emitter, moves: list[Move]) -> str:
    symbols = list(dict.fromkeys(emitter.symbol(move.value) for move in moves if emitter.alive(move.value)))
    return symbols[0] if len(symbols) == 1 else f"({' | '.join(symbols)})"


def _usable(emitter: Emitter, moves: list[Move]) -> bool:
    return any(emitter.alive(move.value) for move in moves)


def _write_plain(emitter: Emitter, name: str, shape: ArrayShape) -> None:
    grammar = emitter.grammar
    prefix = []
    for moves in shape.prefix:
        if not _usable(emitter, moves):
            break
        prefix.append(_either(emitter, moves))
    size = len(prefix)
    rest = ""
    if size == len(shape.prefix) and _usable(emitter, shape.rest):
        rest = _either(emitter, shape.rest)
    low, high = shape.low, shape.high
    if size == 0:
        if not rest or high == 0:
            grammar.define(name, '"[" "]"')
        else:
            body = f"{rest} {_more(rest, max(low - 1, 0), None if high is None else high - 1)}"
            grammar.define(name, f'"[" {body} "]"' if low else f'"[" ({body})? "]"')
        return
    tail = ""
    if rest:
        tail = _more(rest, max(low - size, 0), None if high is None else high - size)
    for index in range(size - 1, 0, -1):
        tail = f'"," {prefix[index]} {tail}'
        if index >= low:
            tail = f"({grammar.rule(tail, 'i')})?"
    body = f"{prefix[0]} {tail}"
    grammar.define(name, f'"[" {body} "]"' if low else f'"[" ({body})? "]"')


def _more(item: str, low: int, high: int | None) -> str:
    """``low`` to ``high`` further items."""
    if high == 0:
        return ""
    count = "*" if (low, high) == (0, None) else f"{{{low},{'' if high is None else high}}}"
    return f'("," {item}){count}'


def _listed(emitter: Emitter, shape: ArrayShape) -> list[str] | None:
    """The items of an array of unique items as JSON text, if they are few; else None."""
    if shape.prefix or shape.tallies:
        return None
    texts: dict[str, None] = {}
    for move in shape.rest:
        value = emitter.values.table[move.value]
        if value.anything or value.engine_number or value.arrays or value.objects:
            return None
        strings = [] if value.strings == NOTHING else finite(value.strings, UNIQUE)
        numbers = [] if value.numbers == NOTHING else finite(value.numbers, UNIQUE)
        if strings is None or numbers is None or len({float(number) for number in numbers}) < len(numbers):
            return None
        texts.update((json.dumps(text, ensure_ascii=False), None) for text in strings)
        texts.update(dict.fromkeys(numbers))
        texts.update((json.dumps(truth), None) for truth in value.booleans)
        if value.null:
            texts["null"] = None
    return list(texts) if len(texts) <= UNIQUE else None


def _write_unique(emitter: Emitter, name: str, shape: ArrayShape, texts: list[str]) -> None:
    """Bit i: item i is there."""
    grammar = emitter.grammar
    low = shape.low
    high = len(texts) if shape.high is None else min(shape.high, len(texts))
    if low > high:
        raise ConstraintTooComplex("an array needs more unique items than there are")
    limit = "" if high == len(texts) else f"bit_count_lt(_, {high})"
    end = f" %if bit_count_ge(_, {low})" if low else ""
    grammar.define(name, f'"[" {name}f::0')
    for own, comma in ((f"{name}f", ""), (f"{name}n", ",")):
        options = []
        for index, text in enumerate(texts):
            free = f"bit_clear({index})"
            if limit:
                free = f"and({free}, {limit})"
            symbols = grammar.literal(text) if not comma else f'"," {grammar.literal(text)}'
            options.append(f"{symbols} {name}n::set_bit({index}) %if {free}")
        options.append(f'"]"{end}')
        grammar.define(f"{own}::_", " | ".join(options))


class _Tallied:
    """The parameter holds a counter per tally and, where their number matters, one of the items behind the prefix."""

    def __init__(self, emitter: Emitter, name: str, shape: ArrayShape) -> None:
        self.emitter = emitter
        self.name = name
        self.shape = shape
        self.spans: list[Unary] = []
        start = 0
        for tally in shape.tallies:
            self.spans.append(Unary(start, max(tally.low, tally.high or 0)))
            start = self.spans[-1].stop
        self.more_low = max(shape.low - len(shape.prefix), 0)
        self.more_high = None if shape.high is None else shape.high - len(shape.prefix)
        self.items = Unary(start, max(self.more_low, self.more_high or 0))
        if self.items.stop > BITS:
            raise ConstraintTooComplex("an array with bounds too large to be counted beside 'contains'")

    def write(self) -> None:
        grammar, name = self.emitter.grammar, self.name
        size = len(self.shape.prefix)
        grammar.define(name, f'"[" {name}p0::0')
        for index, moves in enumerate(self.shape.prefix):
            options = self._options(moves, f"{name}p{index + 1}", first=index == 0, place=index)
            if index >= self.shape.low:
                options.append(f'"]"{condition(self._end())}')
            grammar.define(f"{name}p{index}::_", " | ".join(options))
        loop = f"{name}p{size}"
        ways = [(loop, loop, False)] if size else [(loop, f"{name}n", True), (f"{name}n", f"{name}n", False)]
        for own, target, first in ways:
            options = self._options(self.shape.rest, target, first=first, place=None)
            options.append(f'"]"{condition(self._end())}')
            grammar.define(f"{own}::_", " | ".join(options))

    def _options(self, moves: list[Move], target: str, *, first: bool, place: int | None) -> list[str]:
        """``place``: index of the item in the prefix; None behind it."""
        options = []
        for move in moves:
            if not self.emitter.alive(move.value):
                continue
            comma = "" if first else '"," '
            item = f"{comma}{self.emitter.symbol(move.value)}"
            allowed = self._allowed(move, place)
            counters = [self.spans[index] for index in move.counted] + ([self.items] if place is None else [])
            for conditions, bits in raised(counters):
                options.append(f"{item} {call(target, bits)}{condition([*allowed, *conditions])}")
        return options

    def _allowed(self, move: Move, place: int | None) -> list[str]:
        conditions = []
        for index, (span, tally) in enumerate(zip(self.spans, self.shape.tallies, strict=True)):
            if index in move.counted and tally.high is not None:
                conditions += span.below(tally.high)
            if place is not None:
                still = self._countable(index, place + 1)
                if still is not None:
                    conditions += span.at_least(tally.low - still - (index in move.counted))
            elif index not in move.counted and tally.low:
                conditions += self._room(span, tally.low)
        if place is None and self.more_high is not None:
            conditions += self.items.below(self.more_high)
        return conditions

    def _countable(self, tally: int, start: int) -> int | None:
        """How many items from ``start`` on may count for the tally; None: as many as one likes."""
        places = sum(self._counts(moves, tally) for moves in self.shape.prefix[start:])
        if self._counts(self.shape.rest, tally):
            if self.more_high is None:
                return None
            places += self.more_high
        return places

    def _counts(self, moves: list[Move], tally: int) -> bool:
        return any(tally in move.counted and self.emitter.alive(move.value) for move in moves)

    def _room(self, span: Unary, low: int) -> list[str]:
        """After an item behind the prefix that is not counted there is room for those that must be."""
        if self.more_high is None:
            return []
        options = [fold("and", span.at_least(low))]
        for have in range(low):
            spare = self.more_high - (low - have)
            if spare > 0:
                options.append(fold("and", [*span.at_least(have), *self.items.below(spare)]))
        return [fold("or", options)]

    def _end(self) -> list[str]:
        conditions = self.items.at_least(self.more_low)
        for span, tally in zip(self.spans, self.shape.tallies, strict=True):
            conditions += span.at_least(tally.low)
        return conditions
