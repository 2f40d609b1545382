"""Inputs of ``constraints.py``: hostile specifications, damaged schemas, instances with their keys in order."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from ramet.runtime.constrain.schema.context import Conjunction
from ramet.runtime.constrain.schema.values import Values
from ramet.runtime.protocol.messages import ConstraintSpec

PATTERNS = (
    r"^(a|b)*a(a|b){200}$",
    r"^((a{1,100}){1,100}){1,100}$",
    "(" * 90 + "a" + ")" * 90,
    r"^(?=.*a)(?=.*b)(?=.*c)(?=.*d)(?=.*e).{8,64}$",
    r"^(\w+\s?){1,200}$",
    "a{9999}b{9999}",
)


def hostile() -> Iterator[tuple[str, ConstraintSpec]]:
    """Specifications that take all the time or memory they can get."""
    for name, document in (*_unions(), *_products(), *_sizes(), *_references(), *_depths(), *_counts()):
        yield name, ConstraintSpec("json_schema", json.dumps(document))
    for size in (1000, 20_000):
        yield f"choice of {size}", ConstraintSpec("choice", json.dumps([f"value {i}" for i in range(size)]))
    for pattern in PATTERNS:
        document = {"type": "string", "pattern": pattern, "maxLength": 5000}
        yield f"pattern {pattern[:30]}", ConstraintSpec("json_schema", json.dumps(document))
        yield f"regex {pattern[:30]}", ConstraintSpec("regex", pattern)


def _unions() -> Iterator[tuple[str, Any]]:
    for size in (50, 200, 1000):
        tagged = [{"required": [f"k{i}"], "properties": {f"k{i}": {"const": i}}} for i in range(size)]
        yield f"union of {size} objects", {"anyOf": tagged}
        opened = [{"properties": {f"k{i}": {"type": "integer"}}} for i in range(size)]
        yield f"oneOf of {size} open objects", {"oneOf": opened}
        patterns = [{"type": "string", "pattern": f"^a{{{i}}}b*"} for i in range(size)]
        yield f"oneOf of {size} patterns", {"oneOf": patterns}


def _products() -> Iterator[tuple[str, Any]]:
    for width in (8, 16, 30):
        presence = [{"oneOf": [{"required": [f"a{i}{j}"]} for j in range(5)]} for i in range(width)]
        yield f"allOf of {width} oneOf", {"allOf": presence}
        values = [
            {"anyOf": [{"properties": {f"a{i}": {"const": j}}, "required": [f"a{i}"]} for j in range(4)]}
            for i in range(width)
        ]
        yield f"allOf of {width} anyOf of objects", {"allOf": values}
        rules = [{"if": {"properties": {f"a{i}": {"const": 1}}}, "then": {"required": [f"b{i}"]}} for i in range(width)]
        yield f"{width} if/then", {"allOf": rules}


def _sizes() -> Iterator[tuple[str, Any]]:
    for size in (1000, 20_000):
        yield f"{size} properties", {"properties": {f"p{i}": {"minimum": i} for i in range(size)}}
        yield f"enum of {size}", {"enum": [f"value {i}" for i in range(size)]}
    yield "text of 2 MB in a const", {"const": "x" * 2_000_000}
    yield "title of 2 MB", {"title": "x" * 2_000_000, "type": "integer"}
    yield "2 MB of patterns", {"properties": {f"p{i}": {"pattern": "a" * 2000} for i in range(1000)}}


def _references() -> Iterator[tuple[str, Any]]:
    yield "$ref to itself", {"$ref": "#"}
    yield "$ref cycle", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    yield "not itself", {"not": {"$ref": "#"}}
    yield "endless required recursion", {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    chain: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2000)}
    yield "chain of 2,000 $ref", {"$defs": chain | {"d2000": True}, "$ref": "#/$defs/d0"}


def _depths() -> Iterator[tuple[str, Any]]:
    objects: Any = {"type": "integer"}
    negations: Any = True
    for _ in range(400):
        objects = {"properties": {"a": objects}}
        negations = {"not": negations}
    yield "400 levels of objects", objects
    yield "400 levels of not", negations
    for depth in (2, 3, 4, 5):
        nested: Any = {"type": "string", "minLength": 100, "maxLength": 10_000}
        for _ in range(depth):
            nested = {"type": "array", "minItems": 1000, "maxItems": 100_000, "items": nested}
        yield f"nested bounds, depth {depth}", nested


def _counts() -> Iterator[tuple[str, Any]]:
    overlapping = {f"[{char}-z]": {"minimum": i} for i, char in enumerate("abcdefgh")}
    yield "8 overlapping key patterns", {"patternProperties": overlapping}
    yield "contains with large counts", {"contains": {"const": 1}, "minContains": 1000, "maxContains": 100_000}
    yield "uniqueItems of 10,000 values", {"uniqueItems": True, "items": {"enum": list(range(10_000))}}


EXCHANGES: tuple[Any, ...] = (True, False, None, 0, -1, 3, "x", [], {}, ["a"], {"type": "string"})
ADDITIONS: dict[str, Any] = {
    "not": {"type": "null"},
    "if": {"type": "object"},
    "minProperties": 1,
    "maxLength": 9,
    "pattern": "^[^b]",
    "anyOf": [{"type": ["object", "string"]}, {"maxLength": 3}],
    "oneOf": [{"type": ["object", "string"]}, {"maxLength": 3}],
    "allOf": [{"type": ["object", "string"]}, {"maxLength": 3}],
}


def mutated(schema: Any, rng: random.Random) -> Any:
    """The schema with up to three places changed: keywords dropped, exchanged, moved or added."""
    copy = json.loads(json.dumps(schema))
    for _ in range(rng.randint(1, 3)):
        places = list(_places(copy))
        if not places:
            break
        holder, key = rng.choice(places)
        action = rng.random()
        if action < 0.3:
            del holder[key]
        elif action < 0.5:
            holder[key] = rng.choice(EXCHANGES)
        elif action < 0.7:
            other, name = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[name]))
        elif isinstance(holder, dict):
            keyword = rng.choice(list(ADDITIONS))
            holder[keyword] = ADDITIONS[keyword]
    return copy


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(items):
        yield value, key
        yield from _places(child)


def sorted_keys(data: Any, values: Values, conjunctions: list[Conjunction]) -> Any:
    """The same value with keys in the order of its schema."""
    known = [values.table[item] for item in conjunctions if item in values.table]
    if isinstance(data, dict):
        shapes = [shape for value in known for shape in value.objects]
        shapes.sort(key=lambda shape: -len(set(shape.keys) & set(data)))
        order = {key: place for place, key in enumerate(dict.fromkeys(k for shape in shapes for k in shape.keys))}
        keys = sorted(data, key=lambda key: order.get(key, len(order)))
        return {key: sorted_keys(data[key], values, [s.keys[key] for s in shapes if key in s.keys]) for key in keys}
    if isinstance(data, list):
        arrays = [shape for value in known for shape in value.arrays]
        moves = [move.value for shape in arrays for group in (*shape.prefix, shape.rest) for move in group]
        return [sorted_keys(item, values, moves) for item in data]
    return data
