"""What a schema's constraint accepts is what a validator accepts: instances drawn from the schema, and damaged ones."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from ramet.runtime.constrain import compile
from ramet.runtime.constrain.schema.context import Context
from ramet.runtime.constrain.schema.graph import Graph
from ramet.runtime.constrain.schema.instances import Instances, NoInstance
from ramet.runtime.constrain.schema.values import Values
from ramet.runtime.protocol.errors import ConstraintError, GenerationFailed, InvalidConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

jsonschema = pytest.importorskip("jsonschema")

KEYS = ["a", "b", "c", "ab", "x-y"]
PATTERNS = ["^a", "b$", "^[a-c]+$", "x", "^.{2,3}$", "\\d", "^(a|b)*$", "^\\S+$", "^(?!a)", "a|^b$"]
LEAVES = [
    {},
    True,
    {"type": "string"},
    {"type": "integer"},
    {"const": 1},
    {"enum": ["a", "b", None, 2]},
    {"type": "null"},
]


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)


class SchemaMaker:
    """Random schemas over a small world of keys and values, so that keywords meet each other."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def make(self, depth: int = 0):
        if depth > 3 or self.chance(0.05):
            return self.rng.choice(LEAVES)
        schema: dict = {}
        kinds = ["object", "array", "string", "number"]
        if self.chance(0.6):
            schema["type"] = self.rng.choice(
                [
                    "object",
                    "array",
                    "string",
                    "integer",
                    "number",
                    "boolean",
                    "null",
                    ["string", "null"],
                    ["object", "array"],
                ]
            )
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for kind, add in (("object", self.objects), ("array", self.arrays), ("string", self.strings)):
            if kind in kinds:
                add(schema, depth)
        if "number" in kinds or "integer" in kinds:
            self.numbers(schema)
        self.applicators(schema, depth)
        return schema

    def objects(self, schema: dict, depth: int) -> None:
        keys = self.rng.sample(KEYS, self.rng.randint(1, 3))
        if self.chance(0.7):
            schema["properties"] = {key: self.make(depth + 1) for key in keys}
        options = {
            "required": lambda: self.rng.sample(KEYS, self.rng.randint(1, 2)),
            "additionalProperties": lambda: self.rng.choice([False, self.make(depth + 1)]),
            "patternProperties": lambda: {self.rng.choice(PATTERNS): self.make(depth + 1)},
            "minProperties": lambda: self.rng.randint(0, 3),
            "maxProperties": lambda: self.rng.randint(0, 4),
            "propertyNames": lambda: self.rng.choice([{"pattern": self.rng.choice(PATTERNS)}, {"enum": KEYS[:3]}]),
            "dependentRequired": lambda: {self.rng.choice(KEYS): [self.rng.choice(KEYS)]},
            "dependentSchemas": lambda: {self.rng.choice(KEYS): self.make(depth + 2)},
            "unevaluatedProperties": lambda: self.rng.choice([False, {"type": "string"}]),
        }
        for (keyword, value), share in zip(options.items(), (0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1), strict=True):
            if self.chance(share):
                schema[keyword] = value()

    def arrays(self, schema: dict, depth: int) -> None:
        options = {
            "items": lambda: self.make(depth + 1),
            "prefixItems": lambda: [self.make(depth + 1) for _ in range(self.rng.randint(1, 2))],
            "minItems": lambda: self.rng.randint(0, 3),
            "maxItems": lambda: self.rng.randint(0, 4),
            "uniqueItems": lambda: True,
            "contains": lambda: self.make(depth + 1),
            "maxContains": lambda: self.rng.randint(1, 3),
            "unevaluatedItems": lambda: self.rng.choice([False, {"type": "string"}]),
        }
        for (keyword, value), share in zip(options.items(), (0.6, 0.2, 0.2, 0.2, 0.1, 0.15, 0.1, 0.1), strict=True):
            if self.chance(share):
                schema[keyword] = value()

    def strings(self, schema: dict, depth: int) -> None:
        if self.chance(0.3):
            schema["minLength"] = self.rng.randint(0, 3)
        if self.chance(0.3):
            schema["maxLength"] = self.rng.randint(0, 5)
        if self.chance(0.3):
            schema["pattern"] = self.rng.choice(PATTERNS)
        if self.chance(0.1):
            schema["format"] = self.rng.choice(["date", "ipv4", "unheard-of"])

    def numbers(self, schema: dict) -> None:
        if self.chance(0.3):
            schema["minimum"] = self.rng.choice([0, -3, 2, 0.5])
        if self.chance(0.3):
            schema["maximum"] = self.rng.choice([5, 10, 7.5, 100])
        if self.chance(0.15):
            schema["multipleOf"] = self.rng.choice([1, 2, 5, 0.5, 3])

    def applicators(self, schema: dict, depth: int) -> None:
        for keyword, share, most in (("anyOf", 0.12, 3), ("oneOf", 0.1, 3), ("allOf", 0.1, 2)):
            if self.chance(share):
                schema[keyword] = [self.make(depth + 1) for _ in range(self.rng.randint(1, most))]
        if self.chance(0.08):
            schema["not"] = self.make(depth + 1)
        if self.chance(0.08):
            schema["if"] = self.make(depth + 1)
            schema["then"] = self.make(depth + 1)
        if self.chance(0.06):
            schema["enum"] = [1, "a", [1], {"a": 1}, None, True, "ab"]


def damaged(value, rng: random.Random):
    """A value like the given one, with something changed."""
    pick = rng.random()
    if isinstance(value, dict) and value and pick < 0.7:
        value = dict(value)
        key = rng.choice(list(value))
        if pick < 0.2:
            del value[key]
        elif pick < 0.3:
            value["zz"] = 1
        else:
            value[key] = damaged(value[key], rng)
        return value
    if isinstance(value, list) and value and pick < 0.7:
        value = list(value)
        index = rng.randrange(len(value))
        if pick < 0.2:
            del value[index]
        elif pick < 0.35:
            value.append(value[index])
        else:
            value[index] = damaged(value[index], rng)
        return value
    if isinstance(value, str) and pick < 0.5:
        return value + rng.choice('a1 -"é\n')
    if isinstance(value, int) and not isinstance(value, bool) and pick < 0.6:
        return value + rng.choice([-1, 1, 10, -100])
    return rng.choice([None, True, 1, -1, 0.5, "a", "", [], {}, [1, 1]])


def takes(compiled, tokenizer, text: str) -> bool:
    matcher = compiled.matcher()
    row = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
    for token in tokenizer.encode(text):
        try:
            matcher.fill_mask(row)
        except GenerationFailed:
            return False
        if not int(row[token >> 5]) >> (token & 31) & 1 or not matcher.advance([token]):
            return False
    return matcher.can_end


def _with_end(pattern: str) -> str:
    """``$`` as the end of the text, where it is neither escaped nor in a class."""
    return re.sub(r"(\\.|\[(?:\\.|[^\]])*\])|\$", lambda found: found[1] or r"\Z", pattern, flags=re.DOTALL)


def for_python(schema):
    """The schema with ``$`` as ECMA 262 means it: Python's own also matches before a last newline."""
    if isinstance(schema, list):
        return [for_python(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key == "pattern":
            result[key] = _with_end(value)
        elif key == "patternProperties":
            result[key] = {_with_end(name): for_python(part) for name, part in value.items()}
        else:
            result[key] = for_python(value)
    return result


def differences(schema, tokenizer, rng: random.Random, draws: int, order: str = "any"):
    """(instance, what the validator says) wherever the constraint says otherwise."""
    spec = ConstraintSpec("json_schema", json.dumps(schema), options=json.dumps({"order": order}))
    try:
        compiled = compile(spec, tokenizer)
        values = Values(Context(Graph(schema)))
    except ConstraintError:
        return
    validator = jsonschema.Draft202012Validator(for_python(schema), format_checker=jsonschema.FormatChecker())
    instances = Instances(values, rng)
    for turn in range(draws):
        try:
            instance = instances.draw()
        except NoInstance:
            continue
        if turn % 2:
            instance = damaged(instance, rng)
        text = json.dumps(instance, separators=(",", ":"), ensure_ascii=False)
        valid = validator.is_valid(instance)
        if takes(compiled, tokenizer, text) != valid:
            yield instance, valid


@pytest.mark.parametrize("seed", range(4))
def test_random_schemas_mean_what_a_validator_says(tokenizer, seed):
    for number in range(30):
        rng = random.Random(1000 * seed + number)
        schema = SchemaMaker(rng).make()
        if isinstance(schema, bool):
            continue
        for instance, valid in differences(schema, tokenizer, rng, draws=6):
            # A bounded number is written without an exponent: the one known way to be stricter.
            assert valid and "e-" in json.dumps(instance), (schema, instance)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_random_schemas_mean_what_a_validator_says(tokenizer, seed):
    for number in range(50):
        rng = random.Random(1000 * seed + number)
        schema = SchemaMaker(rng).make()
        if isinstance(schema, bool):
            continue
        for instance, valid in differences(schema, tokenizer, rng, draws=6):
            assert valid and "e-" in json.dumps(instance), (schema, instance)


SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
    {
        "type": "object",
        "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer"}},
        "if": {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
        "then": {"required": ["n"]},
        "else": {"properties": {"n": False}},
    },
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 3}}, "minProperties": 1},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "maxProperties": 2},
    {"type": "array", "contains": {"type": "integer"}, "minContains": 2, "maxContains": 3, "maxItems": 5},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 1},
    {"not": {"type": ["object", "array", "string"]}},
    {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"maximum": 3}}}], "required": ["a"]},
    {
        "$defs": {"t": {"properties": {"l": {"$ref": "#/$defs/t"}}, "required": ["v"]}},
        "$ref": "#/$defs/t",
        "type": "object",
    },
    {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False, "type": "object"},
    {"type": "object", "dependentRequired": {"a": ["b"], "b": ["c"]}},
    {"type": "string", "pattern": "^(?=.*\\d)(?=.*[a-z])", "maxLength": 6},
]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["object", "array"], "oneOf": [{"type": "null"}, {"maxItems": 1}, True]}, [[1, 1]], [{}, [1], None]),
        ({"anyOf": [{}, {"uniqueItems": True}]}, [[1, 1], [1, 2]], []),
        ({"properties": {"c": {"const": ""}, "b": True}}, [{"c": "", "b": "a"}, {"c": ""}], [{"c": " "}]),
        ({"items": {"const": ""}}, [["", ""], [""]], [["a"]]),
    ],
)
def test_these_mean_what_they_say(tokenizer, schema, good, bad):
    compiled = compile(ConstraintSpec("json_schema", json.dumps(schema), options='{"order":"any"}'), tokenizer)
    for instances, wanted in ((good, True), (bad, False)):
        for instance in instances:
            text = json.dumps(instance, separators=(",", ":"))
            assert takes(compiled, tokenizer, text) is wanted, instance


def test_two_alternatives_that_always_hold_are_not_exactly_one(tokenizer):
    spec = ConstraintSpec("json_schema", '{"oneOf":[{"type":"null"},true,true]}')
    with pytest.raises(InvalidConstraint, match="no JSON value"):
        compile(spec, tokenizer)


def test_an_array_is_never_begun_that_cannot_be_closed(tokenizer):
    """``contains`` asks for a null, and only the first item may be one."""
    schema = {"prefixItems": [True], "items": {"type": "integer"}, "contains": {"type": "null"}, "type": "array"}
    compiled = compile(ConstraintSpec("json_schema", json.dumps(schema)), tokenizer)
    assert takes(compiled, tokenizer, "[null,1,2]")
    matcher = compiled.matcher()
    assert not matcher.advance(tokenizer.encode('["a",'))
    assert not takes(compiled, tokenizer, '["a"]')


@pytest.mark.parametrize("order", ["any", "given"])
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_known_schemas_mean_what_a_validator_says(tokenizer, schema, order):
    rng = random.Random(7)
    assert list(differences(schema, tokenizer, rng, draws=40, order=order)) == [] or order == "given"
    wrongly_taken = [
        instance for instance, valid in differences(schema, tokenizer, rng, draws=40, order=order) if not valid
    ]
    assert wrongly_taken == []


def test_public_schemas_accept_nothing_invalid(tokenizer, shared_cases):
    """Every third of the public schemas (all of them: ``benchmarks/constraints.py``)."""
    right = count = 0
    for line in (shared_cases / "schemas.jsonl").read_text().splitlines()[::3]:
        case = json.loads(line)
        count += 1
        spec = ConstraintSpec("json_schema", json.dumps(case["schema"]), options='{"order":"any"}')
        try:
            compiled = compile(spec, tokenizer)
        except ConstraintError:
            continue
        answers = []
        for test in case["tests"]:
            text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
            answers.append((takes(compiled, tokenizer, text), test["valid"]))
        assert (True, False) not in answers, case["source"]
        right += all(given == wanted for given, wanted in answers)
    assert right >= 0.95 * count
