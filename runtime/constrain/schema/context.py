"""What the lowering of one document shares: its graph, facts, scalars, and quick answers about emptiness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ramet.runtime.constrain.equality import key_of
from ramet.runtime.constrain.schema.facts import KEYWORDS, Facts, Reader
from ramet.runtime.constrain.schema.graph import Graph, Json, Node
from ramet.runtime.constrain.schema.scalars import Literal, Scalars, negative, positive, types_of
from ramet.runtime.constrain.schema.solve import Search
from ramet.runtime.constrain.strings.walk import surely_empty
from ramet.runtime.protocol.errors import ConstraintTooComplex, UnsupportedConstraint

Conjunction = tuple[Literal, ...]
QUICK_STATES = 60

NOT_SAID = -1
"""Stands for a literal that every value satisfies."""

Kinds = int
"""A set of JSON types."""
NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT = (1 << bit for bit in range(6))
EVERY = NULL | BOOLEAN | NUMBER | STRING | ARRAY | OBJECT
_BY_NAME = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": NUMBER,
    "integer": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}


_MAPS = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies"))
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NODES = frozenset(
    (
        "items",
        "additionalItems",
        "additionalProperties",
        "propertyNames",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)


class Context:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.facts = Reader(graph)
        self.scalars = Scalars(graph, self.facts)
        self.search = Search()
        self.free: Literal = positive(graph.synthetic({}, graph.root))
        """A literal that every value satisfies."""
        self.branches: Callable[[Sequence[Literal], Kinds], bool] | None = None
        """Whether some array or object satisfies all literals (set by ``values``, which knows the branches)."""
        self._constants: dict[Json, Literal] = {}
        self._possible: dict[Conjunction, bool] = {}
        self._first: dict[int, int] = {}
        self._by_content: dict[object, int] = {}
        self._pairs: dict[tuple[int, int, Kinds], bool] = {}
        self._kinds: dict[Literal, Kinds] = {}
        self._targets: dict[Literal, Literal] = {}
        self._scopes = 0

    def new_scope(self) -> int:
        self._scopes += 1
        return self._scopes

    def is_true(self, node: Node) -> bool:
        """Whether the schema says nothing."""
        schema = node.schema
        return schema is True or (isinstance(schema, dict) and KEYWORDS.isdisjoint(schema))

    def canonical(self, lits: Iterable[Literal]) -> Conjunction:
        """Without repetitions and schemas that say nothing; a mere reference is replaced by its target."""
        found: dict[Literal, None] = {}
        for lit in lits:
            target = self._targets.get(lit)
            if target is None:
                target = self._target(lit)
                if not target & 1 and self.is_true(self.graph.by_index[target >> 1]):
                    target = NOT_SAID
                self._targets[lit] = target
            if target != NOT_SAID:
                found[target] = None
        return tuple(found)

    def first(self, lit: Literal) -> Literal:
        """The literal of the first node that says the same."""
        return 2 * self._same(self.graph.by_index[lit >> 1]) | lit & 1

    def _same(self, node: Node) -> int:
        """Index of the first node that says the same: schemas are often written many times."""
        found = self._first.get(node.index)
        if found is None:
            self._first[node.index] = node.index  # while it is being worked out: the same as itself alone
            found = self._by_content.setdefault((node.draft, node.scope, self._content(node)), node.index)
            self._first[node.index] = found
        return found

    def _content(self, node: Node) -> object:
        schema = node.schema
        if isinstance(schema, bool):
            return schema
        return tuple((word, self._said(node, word, schema[word])) for word in schema if word in KEYWORDS)

    def _said(self, node: Node, word: str, value: Json) -> object:
        if word == "$ref":
            return self._same(self.graph.resolve(node, value))
        if word in _MAPS and isinstance(value, dict):
            return tuple(
                (name, self._same(self.graph.child(node, word, name)) if _is_schema(child) else repr(child))
                for name, child in value.items()
            )
        if word in _LISTS and isinstance(value, list):
            return tuple(
                self._same(self.graph.child(node, word, index)) if _is_schema(child) else repr(child)
                for index, child in enumerate(value)
            )
        if word in _NODES and _is_schema(value):
            return self._same(self.graph.child(node, word))
        return repr(value)

    def _target(self, lit: Literal) -> Literal:
        for _ in range(32):
            node = self.graph.by_index[lit >> 1]
            schema = node.schema
            if isinstance(schema, bool):
                return lit
            if "$ref" not in schema:
                return 2 * self._same(node) | lit & 1
            if node.draft > 7 and len(KEYWORDS.intersection(schema)) > 1:
                return 2 * self._same(node) | lit & 1
            lit = positive(self.facts(node).refs[0]) | (lit & 1)
        return lit

    def constant(self, value: Json, near: Node) -> Literal:
        """A literal that holds for arrays and objects equal to ``value`` alone."""
        key = key_of(value)
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = positive(self.graph.synthetic(_schema_of(value), near))
        return found

    # ------------------------------------------------------------ emptiness, quickly

    def implied(self, lits: Conjunction, lit: Literal) -> bool:
        """Whether every value that satisfies ``lits`` is known to satisfy the literal, too."""
        return lit in lits or not self.possible((*lits, lit ^ 1))

    def possible(self, lits: Iterable[Literal]) -> bool:
        """False only if no value at all satisfies the literals; arrays and objects are judged by their type."""
        conjunction = self.canonical(lits)
        if not conjunction:
            return True
        found = self._possible.get(conjunction)
        if found is None:
            found = self._possible[conjunction] = self._is_possible(conjunction)
        return found

    def kinds(self, lits: Iterable[Literal]) -> Kinds:
        """JSON types of which the conjunction may have values, by types and constants alone."""
        found = EVERY
        for lit in lits:
            found &= self.kinds_of(lit)
        return found

    def may(self, lit: Literal, kind: Kinds) -> bool:
        """False only if no value of the JSON type satisfies the literal."""
        return bool(self.kinds_of(lit) & kind)

    def kinds_of(self, lit: Literal) -> Kinds:
        found = self._kinds.get(lit)
        if found is None:
            self._kinds[lit] = EVERY  # while it is being worked out
            try:
                found = self._negative_kinds(lit) if lit & 1 else self._positive_kinds(lit)
            finally:
                del self._kinds[lit]
            self._kinds[lit] = found
        return found

    def _positive_kinds(self, lit: Literal) -> Kinds:
        facts = self.facts(self.graph.by_index[lit >> 1])
        if facts.always is not None:
            return EVERY if facts.always else 0
        found = EVERY if facts.types is None else _kinds_of_types(facts.types)
        if facts.values is not None:
            given = 0
            for value in facts.values:
                given |= _kind(value)
            found &= given
        for child in (*facts.refs, *facts.all_of):
            found &= self.kinds_of(positive(child))
        for group in (facts.any_of, facts.one_of):
            if group:
                united = 0
                for child in group:
                    united |= self.kinds_of(positive(child))
                found &= united
        return found

    def _negative_kinds(self, lit: Literal) -> Kinds:
        node = self.graph.by_index[lit >> 1]
        facts = self.facts(node)
        if facts.always is not None:
            return 0 if facts.always else EVERY
        if self.is_true(node):
            return 0
        if facts.types is not None and KEYWORDS.intersection(node.schema) == {"type"}:  # type: ignore[arg-type]
            whole = _kinds_of_types(facts.types)
            return EVERY & ~whole | (NUMBER if "number" not in facts.types else 0)
        return EVERY

    def _is_possible(self, lits: Conjunction) -> bool:
        if any(lit ^ 1 in lits for lit in lits):
            return False
        kinds = self.kinds(lits)
        if kinds & (OBJECT | ARRAY):
            return True
        for value in (None, True, False):
            kind = NULL if value is None else BOOLEAN
            if kinds & kind and all(self.scalars.holds(lit, value) for lit in lits):
                return True
        try:
            if kinds & STRING and not surely_empty(self.scalars.strings(lits), QUICK_STATES):
                return True
            return bool(kinds & NUMBER) and not surely_empty(self.scalars.numbers(lits), QUICK_STATES)
        except UnsupportedConstraint:
            return True

    # ------------------------------------------------------------ proofs of disjointness

    def overlapping(self, children: Sequence[Node], index: int, kind: Kinds) -> list[Node]:
        """The other children that may hold for a value of the type together with ``children[index]``."""
        chosen = children[index]
        if not self.may(positive(chosen), kind):
            return []
        others = (other for place, other in enumerate(children) if place != index)
        return [other for other in others if not self.disjoint(chosen, other, kind)]

    def disjoint(self, left: Node, right: Node, kind: Kinds) -> bool:
        """Whether no value of the type satisfies both; False if that is not proved."""
        if not self.may(positive(right), kind):
            return True
        key = (min(left.index, right.index), max(left.index, right.index), kind)
        found = self._pairs.get(key)
        if found is None:
            self._pairs[key] = False  # while it is being worked out: not proved
            try:
                found = self.branches is not None and not self.branches([positive(left), positive(right)], kind)
            except (ConstraintTooComplex, UnsupportedConstraint):
                found = False
            self._pairs[key] = found
        return found


def _kind(value: Json) -> Kinds:
    if isinstance(value, dict):
        return OBJECT
    if isinstance(value, list):
        return ARRAY
    return _kinds_of_types(types_of(value))


def _is_schema(value: Json) -> bool:
    return isinstance(value, (dict, bool))


def _kinds_of_types(types: Iterable[str]) -> Kinds:
    found = 0
    for name in types:
        found |= _BY_NAME[name]
    return found


def _schema_of(value: Json) -> dict[str, Json]:
    """A schema without constants of arrays or objects that holds for ``value`` alone."""
    if isinstance(value, dict):
        return {
            "type": "object",
            "properties": {key: _schema_of(item) for key, item in value.items()},
            "required": list(value),
            "additionalProperties": False,
        }
    if isinstance(value, list):
        size = len(value)
        return {
            "type": "array",
            "prefixItems": [_schema_of(item) for item in value],
            "minItems": size,
            "maxItems": size,
        }
    return {"const": value}


__all__ = ["Conjunction", "Context", "Facts", "negative", "positive"]
