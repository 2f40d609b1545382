"""Objects with keys in the order of the document, whose keys depend on each other or are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramet.runtime.constrain.schema.clauses import Clause
from ramet.runtime.constrain.schema.emit_object import Member, counted_to, named_members, other_members
from ramet.runtime.constrain.schema.object_shape import ObjectShape
from ramet.runtime.constrain.schema.parameter import BITS, Unary, call, condition, fold, raised
from ramet.runtime.protocol.errors import ConstraintTooComplex

if TYPE_CHECKING:
    from ramet.runtime.constrain.schema.emit import Emitter


class Ordered:
    """Bits: one per key that some clause names, a counter of members, one per duty, and one for "not the first".

    The clauses are closed under resolution: each is checked at the last of its keys, and then none runs into a wall.
    """

    def __init__(self, emitter: Emitter, name: str, shape: ObjectShape, keys: list[str]) -> None:
        self.emitter = emitter
        self.name = name
        self.shape = shape
        self.keys = keys
        tied = {key for clause in shape.clauses for key, _ in clause}.union(*shape.duties)
        self.bit = {key: index for index, key in enumerate(key for key in keys if key in tied)}
        self.counter = Unary(len(self.bit), counted_to(shape))
        self.done = {index: self.counter.stop + index for index in range(len(shape.duties))}
        self.started = self.counter.stop + len(self.done)
        place = {key: index for index, key in enumerate(keys)}
        self._decided: dict[str, list[Clause]] = {}
        for clause in shape.clauses:
            last = max((name for name, _ in clause), key=lambda name: place.get(name, -1))
            self._decided.setdefault(last, []).append(clause)
        if self.started >= BITS:
            raise ConstraintTooComplex("an object with too many keys that depend on each other")
        if shape.high is not None and shape.clauses:
            raise ConstraintTooComplex("an object whose keys depend on each other and are limited in number")

    def write(self) -> None:
        grammar, name, shape = self.emitter.grammar, self.name, self.shape
        grammar.define(name, f'"{{" {name}k0::0')
        for index, key in enumerate(self.keys):
            target = f"{name}k{index + 1}"
            options: list[str] = []
            for member in named_members(self.emitter, shape, key):
                options += self._written(member, target, self._allowed(key, index, member))
            if key not in shape.required:
                options.append(f"{target}::_{condition(self._skippable(key, index))}")
            grammar.define(f"{name}k{index}::_", " | ".join(options))
        last = f"{name}k{len(self.keys)}"
        options = []
        for member in other_members(self.emitter, shape):
            room = [] if shape.high is None else self.counter.below(shape.high)
            options += self._written(member, last, room)
        options.append(f'"}}"{condition(self._end())}')
        grammar.define(f"{last}::_", " | ".join(options))

    def _written(self, member: Member, target: str, conditions: list[str]) -> Iterator[str]:
        """With and without the comma in front."""
        bits = 1 << self.started
        if member.key in self.bit:
            bits |= 1 << self.bit[member.key]
        for index in member.hits:
            bits |= 1 << self.done[index]
        for counted, more in raised([self.counter]):
            after = call(target, bits | more)
            for first in (True, False):
                place = f"bit_{'clear' if first else 'set'}({self.started})"
                yield f"{member.text(first=first)} {after}{condition([place, *conditions, *counted])}"

    def _decided_at(self, key: str, sign: bool) -> list[Clause]:
        """Clauses whose last key is ``key`` and that hold at once if it has the sign."""
        return [clause for clause in self._decided.get(key, ()) if (key, sign) in clause]

    def _earlier(self, clause: Clause, key: str) -> str | None:
        """Condition that the clause holds by the keys before ``key``; None if it always does."""
        options = []
        for name, sign in sorted(clause):
            if name == key:
                continue
            if name in self.bit:
                options.append(f"bit_{'set' if sign else 'clear'}({self.bit[name]})")
            elif not sign:
                return None
        return fold("or", options) if options else "not(true)"

    def _allowed(self, key: str, index: int, member: Member) -> list[str]:
        held = [self._earlier(clause, key) for clause in self._decided_at(key, False)]
        conditions = [item for item in held if item is not None]
        shape = self.shape
        if shape.high is not None:
            later = sum(name in shape.required for name in self.keys[index + 1 :])
            room = shape.high - later
            conditions += self.counter.below(room)
        conditions += self._duties_possible(index, member.hits, written=True)
        return conditions

    def _skippable(self, key: str, index: int) -> list[str]:
        held = [self._earlier(clause, key) for clause in self._decided_at(key, True)]
        conditions = [item for item in held if item is not None]
        shape = self.shape
        later = len(self.keys) - index - 1
        if shape.low and not shape.classes and shape.low > later:
            conditions += self.counter.at_least(shape.low - later)
        conditions += self._duties_possible(index, (), written=False)
        return conditions

    def _duties_possible(self, index: int, hits: tuple[int, ...], *, written: bool) -> list[str]:
        """Duties that nothing after the key at ``index`` can do must be done by now."""
        shape = self.shape
        conditions = []
        for number, absent in enumerate(shape.duties):
            if number in hits or (not written and self.keys[index] in absent):
                continue
            later = self.keys[index + 1 :]
            by_later = any(name in absent or any(number in way.hits for way in shape.ways[name]) for name in later)
            by_class = any(number in way.hits for ways in shape.class_ways for way in ways)
            if not by_later and not by_class:
                conditions.append(self._is_done(number, self.keys[:index]))
        return conditions

    def _is_done(self, number: int, decided: list[str]) -> str:
        absent = self.shape.duties[number]
        missing = [f"bit_clear({self.bit[name]})" for name in decided if name in absent]
        return fold("or", [f"bit_set({self.done[number]})", *missing])

    def _end(self) -> list[str]:
        conditions = self.counter.at_least(self.shape.low)
        for number, absent in enumerate(self.shape.duties):
            if all(name in self.bit for name in absent):
                conditions.append(self._is_done(number, self.keys))
        return conditions
