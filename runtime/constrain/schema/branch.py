"""What branches of arrays and of objects have in common: literals taken in, and applicators as alternatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import combinations

from ramet.runtime.constrain.schema.context import Context, Kinds
from ramet.runtime.constrain.schema.facts import Facts
from ramet.runtime.constrain.schema.graph import Node
from ramet.runtime.constrain.schema.scalars import Literal, negative, positive
from ramet.runtime.protocol.errors import UnsupportedConstraint

SUBSETS = 5
"""Alternatives of an anyOf under unevaluatedProperties / unevaluatedItems: their subsets are looked at one by one."""

Scopes = tuple[int, ...]
"""Which ``unevaluated*`` keywords see what a schema evaluates."""

Way = tuple[tuple[Literal, Scopes], ...]
"""Literals that hold together, in one alternative."""


class Absorbing(ABC):
    """A conjunction under construction, with the number of its members or items. ``seen``: literals taken in."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.low = 0
        self.high: int | None = None
        self.seen: set[tuple[Literal, Scopes]] = set()

    def bound(self, low: int, high: int | None) -> bool:
        self.low = max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)
        return self.high is None or self.low <= self.high

    def absorb(self, lit: Literal, scopes: Scopes = ()) -> bool:
        """Take a literal in; False if it contradicts what is there."""
        lit = self.context.first(lit)
        if (lit, scopes) in self.seen:
            return True
        if any((lit ^ 1, other) in self.seen for other in {scopes, ()}):
            return False
        self.seen.add((lit, scopes))
        node = self.context.graph.by_index[lit >> 1]
        facts = self.context.facts(node)
        if lit & 1:
            return self._absorb_negative(node, facts)
        return self._absorb_positive(node, facts, scopes)

    @abstractmethod
    def _absorb_positive(self, node: Node, facts: Facts, scopes: Scopes) -> bool: ...

    @abstractmethod
    def _absorb_negative(self, node: Node, facts: Facts) -> bool: ...


def at_least_one(node: Node, facts: Facts, scopes: Scopes) -> list[Way]:
    """anyOf. What each alternative evaluates matters where an unevaluated keyword looks on."""
    children = [(positive(child), scopes) for child in facts.any_of]
    if not scopes:
        return [(child,) for child in children]
    if len(children) > SUBSETS:
        raise UnsupportedConstraint(
            f"anyOf at {node.at('anyOf')} has over {SUBSETS} alternatives under an unevaluated keyword",
            keyword="anyOf",
            pointer=node.at("anyOf"),
        )
    sizes = range(1, len(children) + 1)
    return [chosen for size in sizes for chosen in combinations(children, size)]


def exactly_one(context: Context, facts: Facts, scopes: Scopes, kind: Kinds) -> list[Way]:
    """oneOf: each alternative without those others that it is not known to exclude."""
    ways: list[Way] = []
    for index, child in enumerate(facts.one_of):
        others = context.overlapping(facts.one_of, index, kind)
        ways.append(((positive(child), scopes), *((negative(other), ()) for other in others)))
    return ways


def conditional(facts: Facts, scopes: Scopes) -> list[Way]:
    """if / then / else as two alternatives. A condition that fails evaluates nothing."""
    assert facts.condition is not None
    yes: list[tuple[Literal, Scopes]] = [(positive(facts.condition), scopes)]
    no: list[tuple[Literal, Scopes]] = [(negative(facts.condition), ())]
    if facts.then is not None:
        yes.append((positive(facts.then), scopes))
    if facts.otherwise is not None:
        no.append((positive(facts.otherwise), scopes))
    return [tuple(yes), tuple(no)]


def refuted_applicators(facts: Facts) -> Iterable[list[Literal]]:
    """Ways in which a value can fail the in-place applicators."""
    for child in (*facts.refs, *facts.all_of):
        yield [negative(child)]
    if facts.any_of:
        yield [negative(child) for child in facts.any_of]
    if facts.one_of:
        yield [negative(child) for child in facts.one_of]
        for left, right in combinations(facts.one_of, 2):
            yield [positive(left), positive(right)]
    if facts.negated is not None:
        yield [positive(facts.negated)]
    if facts.condition is not None:
        if facts.then is not None:
            yield [positive(facts.condition), negative(facts.then)]
        if facts.otherwise is not None:
            yield [negative(facts.condition), negative(facts.otherwise)]
