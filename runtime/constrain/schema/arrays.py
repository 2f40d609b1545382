"""Arrays: what a conjunction of schemas says about items."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ramet.runtime.constrain.schema.branch import (
    Absorbing,
    Scopes,
    at_least_one,
    conditional,
    exactly_one,
    refuted_applicators,
)
from ramet.runtime.constrain.schema.context import ARRAY, Conjunction, Context
from ramet.runtime.constrain.schema.facts import Facts
from ramet.runtime.constrain.schema.graph import Node
from ramet.runtime.constrain.schema.scalars import Literal, negative, positive
from ramet.runtime.protocol.errors import UnsupportedConstraint


@dataclass(frozen=True, slots=True)
class ItemLayer:
    """``prefixItems`` and ``items`` of one schema."""

    prefix: tuple[Literal, ...]
    items: Literal | None
    scopes: Scopes = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """From item ``start`` on, ``low`` to ``high`` items satisfy the literal."""

    lit: Literal
    low: int
    high: int | None
    start: int = 0
    scopes: Scopes = ()


@dataclass(frozen=True, slots=True)
class ItemPart:
    """One alternative of a choice."""

    literals: tuple[tuple[Literal, Scopes], ...] = ()
    layers: tuple[ItemLayer, ...] = ()
    counted: tuple[Counted, ...] = ()
    low: int = 0
    high: int | None = None


class ArrayBranch(Absorbing):
    """See ``solve.Branch``."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.choices: list[list[ItemPart]] = []
        self.layers: list[ItemLayer] = []
        self.counted: list[Counted] = []
        self.unique: list[Node] = []
        self.unevaluated: list[tuple[int, Node, Scopes]] = []

    def fork(self) -> ArrayBranch:
        twin = ArrayBranch(self.context)
        for name in ("choices", "layers", "counted", "unique", "seen", "unevaluated"):
            setattr(twin, name, getattr(self, name).copy())
        twin.low, twin.high = self.low, self.high
        return twin

    def add(self, part: ItemPart) -> bool:
        if not all(self.absorb(lit, scopes) for lit, scopes in part.literals):
            return False
        self.layers.extend(part.layers)
        self.counted.extend(part.counted)
        return self.bound(part.low, part.high)

    def _absorb_positive(self, node: Node, facts: Facts, scopes: Scopes) -> bool:
        if facts.always is not None:
            return facts.always
        if facts.types is not None and "array" not in facts.types:
            return False
        if facts.values is not None:
            arrays = [value for value in facts.values if isinstance(value, list)]
            if not arrays:
                return False
            self.choices.append([ItemPart(literals=((self.context.constant(value, node), ()),)) for value in arrays])
        if facts.unevaluated_items is not None:
            scope = self.context.new_scope()
            self.unevaluated.append((scope, facts.unevaluated_items, scopes))
            scopes = (*scopes, scope)
        if facts.prefix or facts.items is not None:
            items = None if facts.items is None else positive(facts.items)
            self.layers.append(ItemLayer(tuple(map(positive, facts.prefix)), items, scopes))
        if facts.contains is not None:
            child = facts.contains
            self.counted.append(
                Counted(positive(child.node), child.low, child.high, 0, scopes if child.counted else ())
            )
        if facts.unique:
            self.unique.append(node)
        return self.bound(facts.min_items, facts.max_items) and all(
            self._step(step, node, facts, scopes) for step in facts.steps
        )

    def _step(self, step: str, node: Node, facts: Facts, scopes: Scopes) -> bool:
        if step == "refs":
            return all(self.absorb(positive(target), scopes) for target in facts.refs)
        if step == "all_of":
            return all(self.absorb(positive(child), scopes) for child in facts.all_of)
        if step == "any_of":
            self.choices.append([ItemPart(literals=way) for way in at_least_one(node, facts, scopes)])
        elif step == "one_of":
            ways = exactly_one(self.context, facts, scopes, ARRAY)
            self.choices.append([ItemPart(literals=way) for way in ways])
        elif step == "negated" and facts.negated is not None:
            return self.absorb(negative(facts.negated))
        elif step == "condition":
            ways = conditional(facts, scopes)
            self.choices.append([ItemPart(literals=way) for way in ways])
        return True

    def _absorb_negative(self, node: Node, facts: Facts) -> bool:
        if facts.always is not None:
            return not facts.always
        if facts.types is not None and "array" not in facts.types:
            return True
        parts = list(self._refutations(node, facts))
        if facts.values is not None:
            arrays = [value for value in facts.values if isinstance(value, list)]
            if not arrays:
                return True
            parts.append(ItemPart(literals=tuple((self.context.constant(value, node) ^ 1, ()) for value in arrays)))
        if not parts:
            return False
        self.choices.append(parts)
        return True

    def _refutations(self, node: Node, facts: Facts) -> Iterable[ItemPart]:
        """Ways in which an array can fail the schema."""
        for present, keyword in ((facts.unique, "uniqueItems"), (facts.unevaluated_items, "unevaluatedItems")):
            if present:
                raise UnsupportedConstraint(
                    f"{keyword} at {node.at(keyword)} cannot be negated", keyword=keyword, pointer=node.at(keyword)
                )
        for index, child in enumerate(facts.prefix):
            if not self.context.is_true(child):
                layer = ItemLayer((self.context.free,) * index + (negative(child),), None)
                yield ItemPart(layers=(layer,), low=index + 1)
        if facts.items is not None and not self.context.is_true(facts.items):
            yield ItemPart(counted=(Counted(negative(facts.items), 1, None, len(facts.prefix)),))
        if facts.min_items > 0:
            yield ItemPart(high=facts.min_items - 1)
        if facts.max_items is not None:
            yield ItemPart(low=facts.max_items + 1)
        if facts.contains is not None:
            lit = positive(facts.contains.node)
            if facts.contains.low > 0:
                yield ItemPart(counted=(Counted(lit, 0, facts.contains.low - 1),))
            if facts.contains.high is not None:
                yield ItemPart(counted=(Counted(lit, facts.contains.high + 1, None),))
        for lits in refuted_applicators(facts):
            yield ItemPart(literals=tuple((lit, ()) for lit in lits))

    def closed_layers(self) -> list[ItemLayer]:
        """The layers, ``unevaluatedItems`` turned into further ones."""
        layers = list(self.layers)
        for scope, node, outer in self.unevaluated:
            seen = [layer for layer in self.layers if scope in layer.scopes]
            inner = any(scope in scopes for _, _, scopes in self.unevaluated)
            if inner or any(layer.items is not None for layer in seen):
                continue
            known = max((len(layer.prefix) for layer in seen), default=0)
            counted = [item.lit for item in self.counted if scope in item.scopes]
            lit = positive(node)
            if counted:
                schemas = [self.context.graph.by_index[item >> 1].schema for item in counted]
                lit = positive(self.context.graph.synthetic({"anyOf": [node.schema, *schemas]}, node))
            layers.append(ItemLayer((self.context.free,) * known, lit, outer))
        return layers

    @staticmethod
    def conjunction(index: int, layers: Iterable[ItemLayer]) -> Conjunction:
        """What all layers ask of the item at ``index``."""
        found: dict[Literal, None] = {}
        for layer in layers:
            lit = layer.prefix[index] if index < len(layer.prefix) else layer.items
            if lit is not None:
                found[lit] = None
        return tuple(found)
