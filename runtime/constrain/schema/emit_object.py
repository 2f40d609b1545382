"""Objects written as rules.

Keys stand in the order of the document, or in any order; then a 64-bit parameter of the rule says which keys are there
already. Conditions look ahead, so that no choice of keys leads to a place from which the object cannot be closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ramet.runtime.constrain.schema.object_shape import ObjectShape
from ramet.runtime.constrain.schema.parameter import BITS, Unary, call, condition, fold, raised
from ramet.runtime.constrain.strings.lang import Lang
from ramet.runtime.protocol.errors import ConstraintTooComplex

if TYPE_CHECKING:
    from ramet.runtime.constrain.schema.emit import Emitter

Order = Literal["given", "any"]


@dataclass(frozen=True, slots=True)
class Member:
    """``head``: symbols of the key and the colon. ``hits``: flags that this way of writing the member sets."""

    key: str | None
    head: str
    comma_head: str
    value: str
    hits: tuple[int, ...] = ()

    def text(self, *, first: bool) -> str:
        return f"{self.head if first else self.comma_head} {self.value}"


def write_object(emitter: Emitter, name: str, shape: ObjectShape) -> None:
    keys = [key for key, value in shape.keys.items() if emitter.alive(value)]
    plain = not shape.clauses and shape.low == 0 and shape.high is None and not shape.duties
    if not plain and not keys and not shape.duties and not shape.clauses:
        write_map(emitter, name, shape)
    elif _in_any_order(emitter.order, shape, keys):
        AnyOrder(emitter, name, shape, keys).write()
    elif plain:
        _write_plain(emitter, name, shape, keys)
    else:
        from ramet.runtime.constrain.schema.emit_ordered import Ordered

        Ordered(emitter, name, shape, keys).write()


def _in_any_order(order: Order, shape: ObjectShape, keys: list[str]) -> bool:
    """Objects with too many keys for the parameter keep the order of the document."""
    counted = counted_to(shape) if shape.classes else 0
    return order == "any" and bool(keys) and len(keys) + len(shape.duties) + counted <= BITS


def counted_to(shape: ObjectShape) -> int:
    """Where a counter of members may stop counting."""
    return max(shape.low, shape.high or 0)


def named_member(emitter: Emitter, key: str, value: str, hits: tuple[int, ...] = ()) -> Member:
    head, comma_head = emitter.grammar.named_key(key)
    return Member(key, head, comma_head, value, hits)


def other_member(emitter: Emitter, lang: Lang, value: str, hits: tuple[int, ...] = ()) -> Member:
    head, comma_head = emitter.grammar.keys(lang)
    return Member(None, head, comma_head, value, hits)


def named_members(emitter: Emitter, shape: ObjectShape, key: str) -> Iterator[Member]:
    """The ways to write a member with a name."""
    for way in shape.ways[key]:
        if emitter.alive(way.value):
            yield named_member(emitter, key, emitter.symbol(way.value), way.hits)


def other_members(emitter: Emitter, shape: ObjectShape) -> Iterator[Member]:
    """The ways to write members with keys of a class."""
    for item, ways in zip(shape.classes, shape.class_ways, strict=True):
        for way in ways:
            if emitter.alive(way.value):
                yield other_member(emitter, item.lang, emitter.symbol(way.value), way.hits)


def _write_plain(emitter: Emitter, name: str, shape: ObjectShape, keys: list[str]) -> None:
    """Keys in order, each required or optional, then the others."""
    grammar = emitter.grammar
    members = [named_member(emitter, key, emitter.symbol(shape.keys[key])) for key in keys]
    needed = [key in shape.required for key in keys]
    more = list(other_members(emitter, shape))
    again = ""
    if more:
        again = f"({' | '.join(item.text(first=False) for item in more)})*"
    tails = _Tails(members, needed, again)
    first = needed.index(True) if True in needed else len(keys)
    if needed and needed[0]:
        grammar.define(name, f'"{{" {members[0].text(first=True)} {tails(1)} "}}"')
        return
    names = {len(keys): grammar.rule(again, "x") if again else ""}
    for index in range(len(keys) - 1, 0, -1):
        if index > first:
            continue
        body = members[index].text(first=False)
        body = body if needed[index] else f"({body})?"
        rest = names[index + 1] if index + 1 in names else tails(index + 1)
        names[index] = grammar.rule(f"{body} {rest}", "x")
    options = []
    for index in range(min(first + 1, len(keys))):
        rest = names[index + 1] if index + 1 in names else tails(index + 1)
        options.append(f"{members[index].text(first=True)} {rest}")
    if first == len(keys):
        options += [f"{item.text(first=True)} {names[len(keys)]}" for item in more]
        options.append('""')
    grammar.define(name, f'"{{" ({" | ".join(options)}) "}}"')


class _Tails:
    """The members from an index on, each with its comma."""

    def __init__(self, members: list[Member], needed: list[bool], again: str) -> None:
        parts = [
            item.text(first=False) if must else f"({item.text(first=False)})?"
            for item, must in zip(members, needed, strict=True)
        ]
        self._parts = [*parts, again]

    def __call__(self, index: int) -> str:
        return " ".join(self._parts[index:])


class AnyOrder:
    """The closing brace is the end of each parametric rule: the engine misjudges conditional rules that may be empty.

    Bit i: key i is there, required keys first; then, where the number of members matters, a counter of the other keys,
    so that the bits set are as many as the members; then one bit per duty, set when a member does it.
    """

    def __init__(self, emitter: Emitter, name: str, shape: ObjectShape, keys: list[str]) -> None:
        self.emitter = emitter
        self.name = name
        self.shape = shape
        keys = sorted(keys, key=lambda key: key not in shape.required)
        self.bit = {key: index for index, key in enumerate(keys)}
        self.required = len(shape.required)
        self.extra = Unary(len(keys), counted_to(shape) if shape.classes else 0)
        self.members = f"[0:{self.extra.stop}]"
        self.done = {index: self.extra.stop + index for index in range(len(shape.duties))}
        if shape.high is not None and shape.clauses:
            raise ConstraintTooComplex("an object whose keys depend on each other and are limited in number")

    def write(self) -> None:
        grammar = self.emitter.grammar
        grammar.define(self.name, f'"{{" {self.name}f::0')
        for first, own in ((True, f"{self.name}f"), (False, f"{self.name}n")):
            options = [option for item in self._members() for option in self._written(item, first)]
            options.append(f'"}}"{condition(self._end())}')
            grammar.define(f"{own}::_", " | ".join(options))

    def _members(self) -> Iterator[Member]:
        for key in self.shape.keys:
            if key in self.bit:
                yield from named_members(self.emitter, self.shape, key)
        yield from other_members(self.emitter, self.shape)

    def _written(self, item: Member, first: bool) -> Iterator[str]:
        bits = 0 if item.key is None else 1 << self.bit[item.key]
        for index in item.hits:
            bits |= 1 << self.done[index]
        allowed = self._allowed(item)
        for conditions, more in raised([self.extra] if item.key is None else []):
            target = call(f"{self.name}n", bits | more)
            yield f"{item.text(first=first)} {target}{condition([*allowed, *conditions])}"

    def _allowed(self, item: Member) -> list[str]:
        conditions = []
        key = item.key
        if key is not None:
            conditions.append(f"bit_clear({self.bit[key]})")
            for clause in self.shape.clauses:
                if (key, False) in clause and not any(sign for _, sign in clause):
                    others = [other for other, _ in clause if other != key]
                    if all(other in self.bit for other in others):
                        conditions.append(fold("or", [f"bit_clear({self.bit[other]})" for other in others]))
            conditions += self._duties_possible(key, item.hits)
        if self.shape.high is not None:
            conditions.append(self._room(self.shape.high, key in self.shape.required))
        return conditions

    def _duties_possible(self, key: str, hits: tuple[int, ...]) -> list[str]:
        """Writing ``key`` leaves a way to do each duty that it does not do: a key that is not there yet."""
        conditions = []
        for index, absent in enumerate(self.shape.duties):
            doers = {name for name in self.bit if any(index in way.hits for way in self.shape.ways[name])} | absent
            by_class = any(index in way.hits for ways in self.shape.class_ways for way in ways)
            if index not in hits and not by_class and key in doers:
                rest = [f"bit_clear({self.bit[name]})" for name in sorted(doers - {key}) if name in self.bit]
                conditions.append(fold("or", [f"bit_set({self.done[index]})", *rest]))
        return conditions

    def _room(self, high: int, is_required: bool) -> str:
        """One more member leaves room for the required keys that are still missing."""
        needed = self.required
        options = []
        if high - needed > 0:
            options.append(f"bit_count_lt({self.members}, {high - needed})")
        for count in range(max(high - needed, 0), high):
            have = needed - (high - 1 - count) - (1 if is_required else 0)
            here = f"bit_count_eq({self.members}, {count})"
            options.append(f"and({here}, bit_count_ge([0:{needed}], {have}))" if have > 0 else here)
        return fold("or", options) if options else "not(true)"

    def _end(self) -> list[str]:
        conditions = []
        if self.required:
            conditions.append(f"is_ones([0:{self.required}])")
        if self.shape.low:
            conditions.append(f"bit_count_ge({self.members}, {self.shape.low})")
        for index, absent in enumerate(self.shape.duties):
            if all(name in self.bit for name in absent):
                missing = [f"bit_clear({self.bit[name]})" for name in sorted(absent)]
                conditions.append(fold("or", [f"bit_set({self.done[index]})", *missing]))
        for clause in self.shape.clauses:
            if any(sign for _, sign in clause) and not any(not sign and key not in self.bit for key, sign in clause):
                signs = [(self.bit[key], sign) for key, sign in sorted(clause) if key in self.bit]
                conditions.append(fold("or", [f"bit_{'set' if sign else 'clear'}({bit})" for bit, sign in signs]))
        return conditions


def write_map(emitter: Emitter, name: str, shape: ObjectShape) -> None:
    """An object without named keys, whose members are counted."""
    if shape.high == 0:
        emitter.grammar.define(name, '"{" "}"')
        return
    width = counted_to(shape).bit_length()
    span = f"[0:{width}]"
    end = condition([f"ge({span}, {shape.low})"] if shape.low else [])
    room = condition([f"lt({span}, {shape.high})"] if shape.high is not None else [])
    members = list(other_members(emitter, shape))
    emitter.grammar.define(name, f'"{{" {name}f::0')
    for own, first in ((f"{name}f", True), (f"{name}n", False)):
        options = [f"{item.text(first=first)} {name}n::incr({span}){room}" for item in members]
        emitter.grammar.define(f"{own}::_", " | ".join([*options, f'"}}"{end}']))
