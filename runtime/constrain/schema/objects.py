"""Objects: what a conjunction of schemas says about keys and their values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ramet.runtime.constrain.schema.branch import (
    Absorbing,
    Scopes,
    at_least_one,
    conditional,
    exactly_one,
    refuted_applicators,
)
from ramet.runtime.constrain.schema.clauses import Clause, absent, present
from ramet.runtime.constrain.schema.context import OBJECT, Context
from ramet.runtime.constrain.schema.facts import Facts
from ramet.runtime.constrain.schema.graph import Node
from ramet.runtime.constrain.schema.scalars import Literal, negative, positive
from ramet.runtime.constrain.strings.lang import Lang, contains
from ramet.runtime.protocol.errors import UnsupportedConstraint

FEW = 2
"""Ways to fail a schema up to which they are looked at one by one: that finds contradictions sooner."""


@dataclass(frozen=True, slots=True)
class Layer:
    """``properties``, ``patternProperties`` and ``additionalProperties`` of one schema. A property without a literal
    is known, and free."""

    properties: dict[str, Literal | None] = field(default_factory=dict)
    patterns: tuple[tuple[Lang, Literal | None], ...] = ()
    additional: Literal | None = None
    scopes: Scopes = ()

    def matched(self, key: str) -> list[Literal | None]:
        """What the layer asks of the key, ``additional`` left out; empty if the layer does not know the key."""
        found = [self.properties[key]] if key in self.properties else []
        return found + [lit for pattern, lit in self.patterns if contains(pattern, key)]


@dataclass(frozen=True, slots=True)
class Somewhere:
    """At least one key in ``among`` (all that a layer knows as additional, or the keys of a language) whose value
    satisfies the literal (None: any value)."""

    layer: Layer | None
    among: Lang | None
    lit: Literal | None


@dataclass(frozen=True, slots=True)
class Duty:
    """At least one of: a key of ``absent`` is not there; a key of ``values`` is there, and its value satisfies the
    literal; one of ``somewhere``."""

    absent: frozenset[str] = frozenset()
    values: tuple[tuple[str, Literal], ...] = ()
    somewhere: tuple[Somewhere, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """One alternative of a choice."""

    literals: tuple[tuple[Literal, Scopes], ...] = ()
    clauses: tuple[Clause, ...] = ()
    layers: tuple[Layer, ...] = ()
    somewhere: tuple[Somewhere, ...] = ()
    values: tuple[tuple[str, Literal], ...] = ()
    """Keys that are there, with values that satisfy the literals."""
    low: int = 0
    high: int | None = None

    @property
    def one_deed(self) -> bool:
        """Whether the part is a single thing of which a Duty can be made."""
        if self.literals or self.layers or self.low or self.high is not None:
            return False
        only_absent = len(self.clauses) == 1 and not any(sign for _, sign in self.clauses[0])
        return len(self.clauses) + len(self.somewhere) + len(self.values) == 1 and (only_absent or not self.clauses)


class ObjectBranch(Absorbing):
    """See ``solve.Branch``."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.choices: list[list[Part]] = []
        self.layers: list[Layer] = []
        self.names: list[Literal] = []
        self.clauses: list[Clause] = []
        self.duties: list[Duty] = []
        self.unevaluated: list[tuple[int, Literal, Scopes]] = []

    def fork(self) -> ObjectBranch:
        twin = ObjectBranch(self.context)
        for name in ("choices", "layers", "names", "clauses", "duties", "seen", "unevaluated"):
            setattr(twin, name, getattr(self, name).copy())
        twin.low, twin.high = self.low, self.high
        return twin

    # ------------------------------------------------------------ taking in

    def add(self, part: Part) -> bool:
        before = len(self.layers)
        if not all(self.absorb(lit, scopes) for lit, scopes in part.literals):
            return False
        self.layers.extend(part.layers)
        self.layers.extend(Layer(properties={key: lit}) for key, lit in part.values)
        self.duties.extend(Duty(somewhere=(item,)) for item in part.somewhere)
        clauses = [*part.clauses, *(present(key) for key, _ in part.values)]
        return self.bound(part.low, part.high) and self.demand(clauses) and self._consistent(before)

    def demand(self, clauses: Iterable[Clause]) -> bool:
        """Units that contradict each other are found here, the rest when keys are written."""
        for clause in clauses:
            if clause not in self.clauses:
                self.clauses.append(clause)
            if len(clause) == 1:
                ((key, sign),) = clause
                if frozenset(((key, not sign),)) in self.clauses:
                    return False
        return True

    def _absorb_positive(self, node: Node, facts: Facts, scopes: Scopes) -> bool:
        if facts.always is not None:
            return facts.always
        if facts.types is not None and "object" not in facts.types:
            return False
        if facts.values is not None:
            objects = [value for value in facts.values if isinstance(value, dict)]
            if not objects:
                return False
            self.choices.append([Part(literals=((self.context.constant(value, node), ()),)) for value in objects])
        if facts.unevaluated_keys is not None:
            scope = self.context.new_scope()
            self.unevaluated.append((scope, positive(facts.unevaluated_keys), scopes))
            scopes = (*scopes, scope)
        for step in facts.steps:
            if not self._step(step, node, facts, scopes):
                return False
        if facts.names is not None:
            self.names.append(positive(facts.names))
        clauses = [present(key) for key in facts.required]
        for key, others in facts.dependent_keys.items():
            clauses += [frozenset(((key, False), (other, True))) for other in others if other != key]
        return self.demand(clauses) and self.bound(facts.min_keys, facts.max_keys)

    def _step(self, step: str, node: Node, facts: Facts, scopes: Scopes) -> bool:
        if step == "layer":
            self.layers.append(layer_of(facts, scopes))
        elif step == "refs":
            return all(self.absorb(positive(target), scopes) for target in facts.refs)
        elif step == "all_of":
            return all(self.absorb(positive(child), scopes) for child in facts.all_of)
        elif step == "any_of":
            self.choices.append([Part(literals=way) for way in at_least_one(node, facts, scopes)])
        elif step == "one_of":
            ways = exactly_one(self.context, facts, scopes, OBJECT)
            self.choices.append([Part(literals=way) for way in ways])
        elif step == "negated" and facts.negated is not None:
            return self.absorb(negative(facts.negated))
        elif step == "condition":
            ways = conditional(facts, scopes)
            self.choices.append([Part(literals=way) for way in ways])
        elif step == "dependent":
            for key, child in facts.dependent.items():
                there = Part(literals=((positive(child), scopes),), clauses=(present(key),))
                self.choices.append([there, Part(clauses=(absent(key),))])
        return True

    def _absorb_negative(self, node: Node, facts: Facts) -> bool:
        if facts.always is not None:
            return not facts.always
        if facts.types is not None and "object" not in facts.types:
            return True
        parts = list(self._refutations(node, facts))
        if facts.values is not None:
            objects = [value for value in facts.values if isinstance(value, dict)]
            if not objects:
                return True
            lits = tuple((self.context.constant(value, node) ^ 1, ()) for value in objects)
            parts.append(Part(literals=lits))
        if not parts:
            return False
        if len(parts) == 1:
            return self.add(parts[0])
        if len(parts) > FEW and all(part.one_deed for part in parts):
            self.duties.append(_duty(parts))
        else:
            self.choices.append(parts)
        return True

    def _refutations(self, node: Node, facts: Facts) -> Iterable[Part]:
        """Ways in which an object can fail the schema."""
        if facts.unevaluated_keys is not None:
            raise UnsupportedConstraint(
                f"unevaluatedProperties at {node.at('unevaluatedProperties')} cannot be negated",
                keyword="unevaluatedProperties",
                pointer=node.at("unevaluatedProperties"),
            )
        if facts.required:
            yield Part(clauses=(frozenset((key, False) for key in facts.required),))
        for key, child in facts.properties.items():
            if not self.context.is_true(child):
                yield Part(values=((key, negative(child)),))
        layer = layer_of(facts, ())
        for pattern, child in facts.patterns:
            if not self.context.is_true(child):
                yield Part(somewhere=(Somewhere(None, pattern, negative(child)),))
        if facts.additional is not None and not self.context.is_true(facts.additional):
            yield Part(somewhere=(Somewhere(layer, None, negative(facts.additional)),))
        if facts.min_keys > 0:
            yield Part(high=facts.min_keys - 1)
        if facts.max_keys is not None:
            yield Part(low=facts.max_keys + 1)
        if facts.names is not None:
            yield Part(somewhere=(Somewhere(None, self.context.scalars.strings([negative(facts.names)]), None),))
        for key, others in facts.dependent_keys.items():
            yield Part(clauses=(present(key), frozenset((other, False) for other in others)))
        for key, child in facts.dependent.items():
            yield Part(clauses=(present(key),), literals=((negative(child), ()),))
        for lits in refuted_applicators(facts):
            yield Part(literals=tuple((lit, ()) for lit in lits))

    # ------------------------------------------------------------ looking ahead

    def _consistent(self, before: int) -> bool:
        """Whether every required key touched by layers from ``before`` on can still have a value."""
        for layer in self.layers[before:]:
            for key in layer.properties:
                if present(key) in self.clauses and not self.context.possible(self.conjunction(key, self.layers)):
                    return False
        return True

    @staticmethod
    def conjunction(key: str, layers: Iterable[Layer]) -> tuple[Literal, ...]:
        """What all layers ask of the value of ``key``."""
        found: dict[Literal, None] = {}
        for layer in layers:
            matched = layer.matched(key)
            for lit in matched if matched else [layer.additional]:
                if lit is not None:
                    found[lit] = None
        return tuple(found)

    def closed_layers(self) -> list[Layer]:
        """The layers, ``unevaluatedProperties`` turned into additional ones."""
        layers = list(self.layers)
        for scope, lit, outer in self.unevaluated:
            seen = [layer for layer in self.layers if scope in layer.scopes]
            inner = any(scope in scopes for _, _, scopes in self.unevaluated)
            if inner or any(layer.additional is not None for layer in seen):
                continue
            known: dict[str, Literal | None] = {key: None for layer in seen for key in layer.properties}
            patterns = tuple((pattern, None) for layer in seen for pattern, _ in layer.patterns)
            layers.append(Layer(known, patterns, lit, outer))
        return layers


def _duty(parts: Iterable[Part]) -> Duty:
    """One of many deeds: kept as one thing, where taking them for alternatives would multiply."""
    absent = frozenset(key for part in parts for clause in part.clauses for key, _ in clause)
    return Duty(
        absent,
        tuple(pair for part in parts for pair in part.values),
        tuple(item for part in parts for item in part.somewhere),
    )


def layer_of(facts: Facts, scopes: Scopes) -> Layer:
    return Layer(
        {key: positive(child) for key, child in facts.properties.items()},
        tuple((pattern, positive(child)) for pattern, child in facts.patterns),
        None if facts.additional is None else positive(facts.additional),
        scopes,
    )
