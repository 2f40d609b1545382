"""What a schema says, read once: keywords of every draft in one shape, malformed ones refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from ramet.runtime.constrain.equality import key_of
from ramet.runtime.constrain.schema.formats import language
from ramet.runtime.constrain.schema.graph import Graph, Json, Node
from ramet.runtime.constrain.strings.lang import ANY, Lang, both, length
from ramet.runtime.constrain.strings.meaning import search
from ramet.runtime.constrain.strings.tree import PatternError, PatternUnsupported
from ramet.runtime.protocol.errors import InvalidConstraint, UnsupportedConstraint

TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))


@dataclass(slots=True)
class Contains:
    node: Node
    low: int
    high: int | None
    counted: bool
    """Items that match count as evaluated (2020-12)."""


@dataclass(slots=True)
class Facts:
    """``steps``: in-place applicators and the object layer, in the order of the document (it decides key order)."""

    always: bool | None = None
    types: frozenset[str] | None = None
    values: list[Json] | None = None
    value_keys: frozenset[Json] = frozenset()
    """``key_of`` each of ``values``."""
    steps: list[str] = field(default_factory=list)
    # numbers
    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    multiple: Fraction | None = None
    # strings
    text: Lang = ANY
    # objects
    properties: dict[str, Node] = field(default_factory=dict)
    patterns: list[tuple[Lang, Node]] = field(default_factory=list)
    additional: Node | None = None
    required: list[str] = field(default_factory=list)
    min_keys: int = 0
    max_keys: int | None = None
    names: Node | None = None
    dependent_keys: dict[str, list[str]] = field(default_factory=dict)
    dependent: dict[str, Node] = field(default_factory=dict)
    unevaluated_keys: Node | None = None
    # arrays
    prefix: list[Node] = field(default_factory=list)
    items: Node | None = None
    min_items: int = 0
    max_items: int | None = None
    unique: bool = False
    contains: Contains | None = None
    unevaluated_items: Node | None = None
    # applicators
    refs: list[Node] = field(default_factory=list)
    all_of: list[Node] = field(default_factory=list)
    any_of: list[Node] = field(default_factory=list)
    one_of: list[Node] = field(default_factory=list)
    negated: Node | None = None
    condition: Node | None = None
    then: Node | None = None
    otherwise: Node | None = None


class Reader:
    """Facts of nodes, read on first use."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._facts: dict[int, Facts] = {}

    def __call__(self, node: Node) -> Facts:
        found = self._facts.get(node.index)
        if found is None:
            found = self._facts[node.index] = self._read(node)
        return found

    def _read(self, node: Node) -> Facts:
        facts = Facts()
        schema = node.schema
        if isinstance(schema, bool):
            facts.always = schema
            return facts
        if node.draft == 3:
            raise UnsupportedConstraint(
                "JSON Schema draft 3 is not supported: use draft 4 or later", keyword="$schema", pointer="/$schema"
            )
        alone = "$ref" in schema and node.draft <= 7
        for keyword in ("$ref",) if alone else schema:
            read = _READERS.get(keyword)
            if read is not None:
                read(self, node, facts, schema[keyword])
        if not alone:
            self._finish(node, facts)
        return facts

    def _finish(self, node: Node, facts: Facts) -> None:
        """Keywords whose meaning depends on others."""
        schema = node.schema
        assert isinstance(schema, dict)
        if schema.get("exclusiveMinimum") is True:
            facts.low_open = facts.low is not None
        if schema.get("exclusiveMaximum") is True:
            facts.high_open = facts.high is not None
        if isinstance(schema.get("items"), list) and "additionalItems" in schema:
            facts.items = self.graph.child(node, "additionalItems")
        if facts.condition is None:
            facts.then = facts.otherwise = None
        if facts.contains is not None:
            facts.contains.low = _count(node, "minContains", schema["minContains"]) if "minContains" in schema else 1
            facts.contains.high = (
                _count(node, "maxContains", schema["maxContains"]) if "maxContains" in schema else None
            )

    # ------------------------------------------------------------ helpers

    def nodes(self, node: Node, keyword: str, value: Json) -> list[Node]:
        if not isinstance(value, list):
            raise _malformed(node, keyword, "a list of schemas")
        return [self.graph.child(node, keyword, index) for index in range(len(value))]

    def named(self, node: Node, keyword: str, value: Json) -> dict[str, Node]:
        if not isinstance(value, dict):
            raise _malformed(node, keyword, "an object of schemas")
        return {name: self.graph.child(node, keyword, name) for name in value}


def _malformed(node: Node, keyword: str, wanted: str) -> InvalidConstraint:
    return InvalidConstraint(f"{keyword} at {node.at(keyword)} must be {wanted}")


def _count(node: Node, keyword: str, value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value):
        raise _malformed(node, keyword, "a whole number of at least 0")
    return int(value)


def _fraction(node: Node, keyword: str, value: Json) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _malformed(node, keyword, "a number")
    return Fraction(str(value)) if isinstance(value, float) else Fraction(value)


def _strings(node: Node, keyword: str, value: Json) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _malformed(node, keyword, "a list of strings")
    return list(dict.fromkeys(value))


def pattern_language(node: Node, keyword: str, pattern: Json) -> Lang:
    """Strings in which an ECMA-262 pattern is found."""
    if not isinstance(pattern, str):
        raise _malformed(node, keyword, "a regular expression")
    try:
        return search(pattern)
    except PatternError as error:
        raise InvalidConstraint(
            f"{keyword} at {node.at(keyword)}: {pattern!r} is no regular expression: {error}"
        ) from None
    except PatternUnsupported as error:
        raise UnsupportedConstraint(
            f"{keyword} at {node.at(keyword)} cannot be enforced: {error}", keyword=keyword, pointer=node.at(keyword)
        ) from None


# ---------------------------------------------------------------- keywords

Read = Callable[[Reader, Node, Facts, Json], None]


def _type(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    names: Iterable[Json] = [value] if isinstance(value, str) else value if isinstance(value, list) else [None]
    types = set()
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            raise _malformed(node, "type", f"one or several of {', '.join(sorted(TYPES))}, not {value!r}")
        types.add(str(name))
    facts.types = frozenset(types)


def _enum(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    if not isinstance(value, list):
        raise _malformed(node, "enum", "a list")
    _restrict(facts, value)


def _const(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    _restrict(facts, [value])


def _restrict(facts: Facts, values: list[Json]) -> None:
    keys = frozenset(map(key_of, values))
    if facts.values is not None:
        values = [value for value in facts.values if key_of(value) in keys]
        keys &= facts.value_keys
    facts.values, facts.value_keys = values, keys


def _number(attribute: str) -> Read:
    def read(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
        bound = _fraction(node, "minimum" if attribute == "low" else "maximum", value)
        _tighten(facts, attribute, bound, False)

    return read


def _exclusive(attribute: str) -> Read:
    def read(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
        if isinstance(value, bool):
            return
        keyword = "exclusiveMinimum" if attribute == "low" else "exclusiveMaximum"
        _tighten(facts, attribute, _fraction(node, keyword, value), True)

    return read


def _tighten(facts: Facts, attribute: str, bound: Fraction, is_open: bool) -> None:
    if attribute == "low":
        if facts.low is None or bound > facts.low or (bound == facts.low and is_open):
            facts.low, facts.low_open = bound, is_open
    elif facts.high is None or bound < facts.high or (bound == facts.high and is_open):
        facts.high, facts.high_open = bound, is_open


def _multiple(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.multiple = _fraction(node, "multipleOf", value)
    if facts.multiple <= 0:
        raise _malformed(node, "multipleOf", "a number above 0")


def _min_length(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.text = both((facts.text, length(_count(node, "minLength", value), None)))


def _max_length(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.text = both((facts.text, length(0, _count(node, "maxLength", value))))


def _pattern(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.text = both((facts.text, pattern_language(node, "pattern", value)))


def _format(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    enforced = language(value) if isinstance(value, str) else None
    if enforced is not None:
        facts.text = both((facts.text, enforced))


def _layer(facts: Facts) -> None:
    if "layer" not in facts.steps:
        facts.steps.append("layer")


def _properties(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.properties = reader.named(node, "properties", value)
    _layer(facts)


def _patterns(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    for pattern, child in reader.named(node, "patternProperties", value).items():
        facts.patterns.append((pattern_language(node, "patternProperties", pattern), child))
    _layer(facts)


def _additional(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.additional = reader.graph.child(node, "additionalProperties")
    _layer(facts)


def _required(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.required = _strings(node, "required", value)


def _dependent_required(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    if not isinstance(value, dict):
        raise _malformed(node, "dependentRequired", "an object of lists of strings")
    for name, keys in value.items():
        facts.dependent_keys.setdefault(name, []).extend(_strings(node, "dependentRequired", keys))


def _dependent(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.dependent.update(reader.named(node, "dependentSchemas", value))
    _step(facts, "dependent")


def _dependencies(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    """Up to draft 7, and where no draft is named."""
    if not isinstance(value, dict):
        raise _malformed(node, "dependencies", "an object")
    if node.draft >= 2019 and isinstance(node.resource.root, dict) and "$schema" in node.resource.root:
        return
    for name, item in value.items():
        if isinstance(item, list):
            facts.dependent_keys.setdefault(name, []).extend(_strings(node, "dependencies", item))
        elif isinstance(item, str):
            facts.dependent_keys.setdefault(name, []).append(item)
        else:
            facts.dependent[name] = reader.graph.child(node, "dependencies", name)
            _step(facts, "dependent")


def _step(facts: Facts, name: str) -> None:
    if name not in facts.steps:
        facts.steps.append(name)


def _items(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    if isinstance(value, list):
        facts.prefix = reader.nodes(node, "items", value)
    else:
        facts.items = reader.graph.child(node, "items")


def _contains(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.contains = Contains(reader.graph.child(node, "contains"), 1, None, node.draft >= 2020)


def _unique(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    if not isinstance(value, bool):
        raise _malformed(node, "uniqueItems", "true or false")
    facts.unique = value


def _counted(keyword: str, attribute: str) -> Read:
    def read(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
        setattr(facts, attribute, _count(node, keyword, value))

    return read


def _one(keyword: str, attribute: str, step: str | None = None) -> Read:
    def read(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
        setattr(facts, attribute, reader.graph.child(node, keyword))
        if step is not None:
            _step(facts, step)

    return read


def _many(keyword: str, attribute: str, step: str | None = None) -> Read:
    def read(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
        if value == [] and keyword != "prefixItems":
            raise _malformed(node, keyword, "a list of at least one schema")
        setattr(facts, attribute, reader.nodes(node, keyword, value))
        if step is not None:
            _step(facts, step)

    return read


def _ref(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.refs.append(reader.graph.resolve(node, value))
    _step(facts, "refs")


def _dynamic_ref(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.refs.append(reader.graph.resolve_dynamic(node, value))
    _step(facts, "refs")


def _recursive_ref(reader: Reader, node: Node, facts: Facts, value: Json) -> None:
    facts.refs.append(reader.graph.resolve_recursive(node))
    _step(facts, "refs")


_READERS: dict[str, Read] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minimum": _number("low"),
    "maximum": _number("high"),
    "exclusiveMinimum": _exclusive("low"),
    "exclusiveMaximum": _exclusive("high"),
    "multipleOf": _multiple,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
    "properties": _properties,
    "patternProperties": _patterns,
    "additionalProperties": _additional,
    "required": _required,
    "minProperties": _counted("minProperties", "min_keys"),
    "maxProperties": _counted("maxProperties", "max_keys"),
    "propertyNames": _one("propertyNames", "names"),
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent,
    "dependencies": _dependencies,
    "unevaluatedProperties": _one("unevaluatedProperties", "unevaluated_keys"),
    "prefixItems": _many("prefixItems", "prefix"),
    "items": _items,
    "minItems": _counted("minItems", "min_items"),
    "maxItems": _counted("maxItems", "max_items"),
    "uniqueItems": _unique,
    "contains": _contains,
    "unevaluatedItems": _one("unevaluatedItems", "unevaluated_items"),
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _recursive_ref,
    "allOf": _many("allOf", "all_of", "all_of"),
    "anyOf": _many("anyOf", "any_of", "any_of"),
    "oneOf": _many("oneOf", "one_of", "one_of"),
    "not": _one("not", "negated", "negated"),
    "if": _one("if", "condition", "condition"),
    "then": _one("then", "then"),
    "else": _one("else", "otherwise"),
}

KEYWORDS = frozenset(_READERS) | {"additionalItems", "minContains", "maxContains"}
"""Keywords that say something about instances; every other keyword is an annotation or an identifier."""
