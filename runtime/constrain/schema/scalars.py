"""Null, booleans, numbers and strings: which of them a schema allows, exactly.

A *literal* is a node taken positively or negatively: ``2 * index`` or ``2 * index + 1``. Strings and numbers are
languages of their text, where combining schemas is combining languages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from typing import Protocol

from ramet.runtime.constrain import numbers
from ramet.runtime.constrain.equality import key_of
from ramet.runtime.constrain.schema.facts import Facts, Reader
from ramet.runtime.constrain.schema.graph import Graph, Json, Node
from ramet.runtime.constrain.strings.lang import (
    ANY,
    NOTHING,
    Lang,
    alt,
    both,
    contains,
    literal,
    literals,
    negate,
)
from ramet.runtime.constrain.strings.walk import disjoint
from ramet.runtime.protocol.errors import UnsupportedConstraint

Literal = int
PROOF_STATES = 200


def positive(node: Node) -> Literal:
    return 2 * node.index


def negative(node: Node) -> Literal:
    return 2 * node.index + 1


class LanguageOf(Protocol):
    def __call__(self, lit: Literal) -> Lang: ...


class Scalars:
    def __init__(self, graph: Graph, facts: Reader) -> None:
        self._graph = graph
        self._facts = facts
        self._strings: dict[int, Lang] = {}
        self._numbers: dict[tuple[int, bool], Lang] = {}
        self._busy: set[object] = set()

    # ------------------------------------------------------------ single values

    def holds(self, lit: Literal, value: Json) -> bool:
        """Whether a null, boolean, number or string satisfies the literal."""
        node = self._graph.by_index[lit >> 1]
        guard = (lit >> 1, key_of(value))
        if guard in self._busy:
            return not lit & 1
        self._busy.add(guard)
        try:
            return self._valid(self._facts(node), value) != bool(lit & 1)
        finally:
            self._busy.discard(guard)

    def _valid(self, facts: Facts, value: Json) -> bool:
        if facts.always is not None:
            return facts.always
        if facts.types is not None and not (types_of(value) & facts.types):
            return False
        if facts.values is not None and key_of(value) not in facts.value_keys:
            return False
        if isinstance(value, str):
            if not contains(facts.text, value):
                return False
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and not _in_bounds(facts, value):
            return False
        return self._applicators(facts, value)

    def _applicators(self, facts: Facts, value: Json) -> bool:
        if not all(self.holds(positive(node), value) for node in (*facts.refs, *facts.all_of)):
            return False
        if facts.any_of and not any(self.holds(positive(node), value) for node in facts.any_of):
            return False
        if facts.one_of and sum(self.holds(positive(node), value) for node in facts.one_of) != 1:
            return False
        if facts.negated is not None and self.holds(positive(facts.negated), value):
            return False
        if facts.condition is not None:
            branch = facts.then if self.holds(positive(facts.condition), value) else facts.otherwise
            return branch is None or self.holds(positive(branch), value)
        return True

    # ------------------------------------------------------------ strings

    def strings(self, lits: Iterable[Literal]) -> Lang:
        """Strings that satisfy all literals."""
        return both(self._string(lit) for lit in lits)

    def _string(self, lit: Literal) -> Lang:
        found = self._strings.get(lit >> 1)
        if found is None:
            if ("string", lit >> 1) in self._busy:
                return ANY
            self._busy.add(("string", lit >> 1))
            try:
                found = self._string_of(self._facts(self._graph.by_index[lit >> 1]))
            finally:
                self._busy.discard(("string", lit >> 1))
            self._strings[lit >> 1] = found
        return negate(found) if lit & 1 else found

    def _string_of(self, facts: Facts) -> Lang:
        if facts.always is not None:
            return ANY if facts.always else NOTHING
        if facts.types is not None and "string" not in facts.types:
            return NOTHING
        lang = facts.text
        if facts.values is not None:
            lang = both((literals(v for v in facts.values if isinstance(v, str)), lang))
        return both((lang, self._combined(facts, self._string)))

    def _combined(self, facts: Facts, language: LanguageOf) -> Lang:
        """The applicators of a schema as language algebra."""
        lang = both(language(positive(node)) for node in (*facts.refs, *facts.all_of))
        if facts.any_of:
            lang = both((lang, alt(language(positive(node)) for node in facts.any_of)))
        if facts.one_of:
            lang = both((lang, exactly_one([(language(positive(n)), language(negative(n))) for n in facts.one_of])))
        if facts.negated is not None:
            lang = both((lang, language(negative(facts.negated))))
        if facts.condition is not None:
            yes, no = language(positive(facts.condition)), language(negative(facts.condition))
            then = ANY if facts.then is None else language(positive(facts.then))
            otherwise = ANY if facts.otherwise is None else language(positive(facts.otherwise))
            lang = both((lang, alt((both((yes, then)), both((no, otherwise))))))
        return lang

    # ------------------------------------------------------------ numbers

    def numbers(self, lits: Iterable[Literal]) -> Lang:
        """Numbers that satisfy all literals, as text."""
        lang = both(self._number(lit, False) for lit in lits)
        if lang == ANY:
            return numbers.NUMBER
        if lang == numbers.INTEGER:
            return lang
        if lang == numbers.at_least(Fraction(0)):
            return numbers.NOT_NEGATIVE
        return lang if lang.plain else both((numbers.DECIMAL, lang))

    def _number(self, lit: Literal, wide: bool) -> Lang:
        """``wide``: every spelling (for what is about to be complemented), not just the usual one."""
        negated = bool(lit & 1)
        wide = wide or negated
        key = (lit >> 1, wide)
        found = self._numbers.get(key)
        if found is None:
            if key in self._busy:
                return NOTHING if negated else ANY
            self._busy.add(key)
            try:
                found = self._number_of(self._graph.by_index[lit >> 1], wide)
            finally:
                self._busy.discard(key)
            self._numbers[key] = found
        return negate(found) if negated else found

    def _number_of(self, node: Node, wide: bool) -> Lang:
        facts = self._facts(node)
        if facts.always is not None:
            return ANY if facts.always else NOTHING
        parts: list[Lang] = []
        if facts.types is not None and "number" not in facts.types:
            if "integer" not in facts.types:
                return NOTHING
            parts.append(numbers.INTEGRAL if wide else numbers.INTEGER)
        if facts.values is not None:
            parts.append(alt(self._spellings(value, wide) for value in facts.values))
        if facts.low is not None:
            parts.append(numbers.at_least(facts.low, exclusive=facts.low_open))
        if facts.high is not None:
            parts.append(numbers.at_most(facts.high, exclusive=facts.high_open))
        if facts.multiple is not None:
            multiples = numbers.multiples(facts.multiple)
            if multiples is None:
                raise UnsupportedConstraint(
                    f"multipleOf {facts.multiple} at {node.at('multipleOf')} cannot be enforced in combination",
                    keyword="multipleOf",
                    pointer=node.at("multipleOf"),
                )
            parts.append(multiples)
        parts.append(self._combined(facts, lambda lit: self._number(lit, wide)))
        return both(parts)

    def _spellings(self, value: Json, wide: bool) -> Lang:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return NOTHING
        exact = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
        return numbers.exactly(exact) if wide else literal(json.dumps(value))


def exactly_one(langs: list[tuple[Lang, Lang]]) -> Lang:
    """Strings in one of the languages and in no other, each given with its complement. Complements are written where
    disjointness is not proved."""
    options = []
    for index, (lang, _) in enumerate(langs):
        others = [
            outside
            for position, (_, outside) in enumerate(langs)
            if position != index and disjoint(lang, negate(outside), PROOF_STATES) is not True
        ]
        options.append(both((lang, *others)))
    return alt(options)


def types_of(value: Json) -> frozenset[str]:
    """JSON types of a scalar: a whole number is an integer too."""
    if value is None:
        return frozenset(("null",))
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, str):
        return frozenset(("string",))
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset(("integer", "number"))
    return frozenset(("number",))


def _in_bounds(facts: Facts, value: int | float) -> bool:
    exact = Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    if facts.low is not None and (exact < facts.low or (facts.low_open and exact == facts.low)):
        return False
    if facts.high is not None and (exact > facts.high or (facts.high_open and exact == facts.high)):
        return False
    return facts.multiple is None or (exact / facts.multiple).denominator == 1
