"""From conjunctions of schemas to values: per JSON type, what may stand in the text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from ramet.runtime.constrain import numbers
from ramet.runtime.constrain.schema.array_shape import ArrayShape, array_shape
from ramet.runtime.constrain.schema.arrays import ArrayBranch
from ramet.runtime.constrain.schema.context import (
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Conjunction,
    Context,
    Kinds,
)
from ramet.runtime.constrain.schema.facts import Facts
from ramet.runtime.constrain.schema.graph import Json
from ramet.runtime.constrain.schema.object_shape import ObjectShape, object_shape
from ramet.runtime.constrain.schema.objects import ObjectBranch
from ramet.runtime.constrain.schema.scalars import Literal, positive
from ramet.runtime.constrain.strings.lang import NOTHING, Lang, alt, literal, literals
from ramet.runtime.constrain.strings.walk import surely_empty
from ramet.runtime.protocol.errors import ConstraintTooComplex, UnsupportedConstraint

B = TypeVar("B", ArrayBranch, ObjectBranch)

NumberSchema = dict[str, "float | int | str"]

VALUES = 20_000
"""Bound of the different values that a schema may speak about."""

EMPTY_STATES = 200


@dataclass(slots=True)
class Value:
    """``numbers``: text language, or ``engine_number``: a schema that the engine's own number code takes."""

    null: bool = False
    booleans: tuple[bool, ...] = ()
    strings: Lang = NOTHING
    numbers: Lang = NOTHING
    engine_number: str = ""
    arrays: list[ArrayShape] = field(default_factory=list)
    objects: list[ObjectShape] = field(default_factory=list)
    anything: bool = False

    @property
    def scalar(self) -> bool:
        """Whether some value that is neither array nor object is allowed."""
        return bool(
            self.null or self.booleans or self.engine_number or self.strings != NOTHING or self.numbers != NOTHING
        )


class Values:
    """All values reachable from the root of a schema."""

    def __init__(self, context: Context) -> None:
        self.context = context
        context.branches = self._some_branch
        self.table: dict[Conjunction, Value] = {}
        self.root = context.canonical([positive(context.graph.root)])
        self._fill()
        self.productive = self._productive()

    def done(self) -> None:
        """No further questions: lets go of what would keep itself alive in a circle."""
        self.context.branches = None

    # ------------------------------------------------------------ reachable values

    def _fill(self) -> None:
        queue = [self.root]
        while queue:
            conjunction = queue.pop()
            if conjunction in self.table:
                continue
            if len(self.table) >= VALUES:
                raise ConstraintTooComplex(f"the schema speaks about more than {VALUES} different values")
            value = self.table[conjunction] = self._value(conjunction)
            for child in children(value):
                if child not in self.table:
                    queue.append(child)

    def _value(self, conjunction: Conjunction) -> Value:
        if not conjunction:
            return Value(anything=True)
        value = Value()
        context = self.context
        scalars = context.scalars
        kinds = context.kinds(conjunction)
        if kinds & NULL:
            value.null = all(scalars.holds(lit, None) for lit in conjunction)
        if kinds & BOOLEAN:
            value.booleans = tuple(
                truth for truth in (True, False) if all(scalars.holds(lit, truth) for lit in conjunction)
            )
        listed = self._listed(conjunction) if kinds & (STRING | NUMBER) else []
        if listed is not None:
            kept = [item for item in listed if all(scalars.holds(lit, item) for lit in conjunction)]
            value.strings = literals(item for item in kept if isinstance(item, str))
            value.numbers = alt(
                literal(json.dumps(item))
                for item in kept
                if isinstance(item, (int, float)) and not isinstance(item, bool)
            )
        else:
            if kinds & STRING:
                value.strings = _pruned(scalars.strings(conjunction))
            if kinds & NUMBER:
                self._numbers(value, conjunction)
        if kinds & ARRAY:
            value.arrays = _least_unique(self._arrays(conjunction))
        if kinds & OBJECT:
            value.objects = list(self._objects(conjunction))
        return value

    def _listed(self, conjunction: Conjunction) -> list[Json] | None:
        """Candidates, where some schema lists its values."""
        for facts in self._flat(conjunction):
            if facts.values is not None:
                return facts.values
        return None

    def _flat(self, conjunction: Conjunction) -> Iterator[Facts]:
        """Facts that hold unconditionally."""
        stack = [lit for lit in reversed(conjunction) if not lit & 1]
        seen: set[Literal] = set()
        while stack:
            lit = stack.pop()
            if lit in seen:
                continue
            seen.add(lit)
            facts = self.context.facts(self.context.graph.by_index[lit >> 1])
            yield facts
            stack.extend(positive(child) for child in (*facts.refs, *facts.all_of))

    def _numbers(self, value: Value, conjunction: Conjunction) -> None:
        bounds = self._integer_bounds(conjunction)
        if bounds is not None:
            value.numbers = numbers.integers(*bounds)
            return
        try:
            value.numbers = _pruned(self.context.scalars.numbers(conjunction))
        except UnsupportedConstraint as refusal:
            value.engine_number = self._engine_number(conjunction, refusal)

    def _integer_bounds(self, conjunction: Conjunction) -> tuple[int | None, int | None] | None:
        """Bounds, if the numbers are just the integers between two bounds."""
        low: int | None = None
        high: int | None = None
        integral = False
        if any(lit & 1 for lit in conjunction):
            return None
        for facts in self._flat(conjunction):
            if facts.types is not None and "number" not in facts.types:
                if "integer" not in facts.types:
                    return None
                integral = True
            mixed = facts.any_of or facts.one_of or facts.negated or facts.condition or facts.multiple
            if mixed or facts.always is False:
                return None
            if facts.low is not None:
                bound = math.floor(facts.low) + 1 if facts.low_open else math.ceil(facts.low)
                low = bound if low is None else max(low, bound)
            if facts.high is not None:
                bound = math.ceil(facts.high) - 1 if facts.high_open else math.floor(facts.high)
                high = bound if high is None else min(high, bound)
        return (low, high) if integral else None

    def _engine_number(self, conjunction: Conjunction, refusal: UnsupportedConstraint) -> str:
        """A schema of bounds and one multipleOf, if the conjunction is no more than that."""
        schema: NumberSchema = {"type": "number"}
        steps: list[Fraction] = []
        if any(lit & 1 for lit in conjunction):
            raise refusal
        for facts in self._flat(conjunction):
            if facts.any_of or facts.one_of or facts.negated or facts.condition or facts.always is False:
                raise refusal
            if facts.types is not None and "number" not in facts.types:
                if "integer" not in facts.types:
                    return ""
                schema["type"] = "integer"
            if facts.multiple is not None:
                steps.append(facts.multiple)
            if facts.low is not None:
                _tighten(schema, "exclusiveMinimum" if facts.low_open else "minimum", facts.low, max)
            if facts.high is not None:
                _tighten(schema, "exclusiveMaximum" if facts.high_open else "maximum", facts.high, min)
        common = steps[0]
        for step in steps[1:]:
            common = Fraction(
                math.lcm(common.numerator * step.denominator, step.numerator * common.denominator),
                common.denominator * step.denominator,
            )
        schema["multipleOf"] = _plain_number(common)
        return json.dumps(schema)

    def _arrays(self, conjunction: Conjunction) -> Iterator[ArrayShape]:
        for branch in self._leaves(ArrayBranch(self.context), conjunction):
            shape = array_shape(branch)
            if shape is not None:
                yield shape

    def _objects(self, conjunction: Conjunction) -> Iterator[ObjectShape]:
        for branch in self._leaves(ObjectBranch(self.context), conjunction):
            shape = object_shape(branch)
            if shape is not None:
                yield shape

    def _leaves(self, start: B, conjunction: Sequence[Literal]) -> list[B]:
        if not all(start.absorb(lit) for lit in conjunction):
            return []
        where = self.context.graph.by_index[conjunction[0] >> 1].pointer
        return self.context.search.solve(start, where)

    def _some_branch(self, lits: Sequence[Literal], kind: Kinds) -> bool:
        if kind == OBJECT:
            return any(object_shape(branch) for branch in self._leaves(ObjectBranch(self.context), lits))
        return any(array_shape(branch) for branch in self._leaves(ArrayBranch(self.context), lits))

    # ------------------------------------------------------------ which of them have an instance

    def _productive(self) -> set[Conjunction]:
        """Least fixpoint: values with at least one finite instance."""
        found: set[Conjunction] = set()
        waiting = list(self.table)
        while True:
            rest = [item for item in waiting if not self._is_productive(self.table[item], found)]
            found.update(set(waiting) - set(rest))
            if len(rest) == len(waiting):
                return found
            waiting = rest

    def _is_productive(self, value: Value, known: set[Conjunction]) -> bool:
        return (
            value.anything
            or value.scalar
            or any(shape.productive(known) for shape in value.arrays)
            or any(shape.productive(known) for shape in value.objects)
        )


def _least_unique(shapes: Iterable[ArrayShape]) -> list[ArrayShape]:
    """Without shapes of unique items where the same shape stands with items that may repeat."""
    kept = list(shapes)
    if all(shape.unique is None for shape in kept):
        return kept
    free = [shape for shape in kept if shape.unique is None]
    return [shape for shape in kept if shape.unique is None or replace(shape, unique=None) not in free]


def children(value: Value) -> Iterator[Conjunction]:
    for array in value.arrays:
        yield from array.children()
    for shape in value.objects:
        yield from shape.children()


def _pruned(lang: Lang) -> Lang:
    """NOTHING, if the language is found to be empty."""
    return NOTHING if surely_empty(lang, EMPTY_STATES) else lang


def _plain_number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _tighten(schema: NumberSchema, key: str, bound: Fraction, tighter: Callable[[float, float], float]) -> None:
    number = _plain_number(bound)
    old = schema.get(key)
    schema[key] = tighter(old, number) if isinstance(old, (int, float)) else number
