"""The option ``close_after``: a value is brought to a close, whatever the model would rather write."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from ramet.runtime.constrain import compile
from ramet.runtime.constrain.bounded import BoundedCompiler
from ramet.runtime.protocol.messages import ConstraintSpec

TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "n": {"type": "number"},
        "when": {"type": "string", "format": "date"},
        "children": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["name", "n", "when", "children"],
}
SCHEMAS = [
    {},
    TREE,
    {"type": "array", "items": {"type": "string"}, "minItems": 2},
    {"type": "object", "additionalProperties": {"type": "array"}},
    {"type": "string", "pattern": "^(ab)+$"},
    {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
    {"type": "integer"},
]


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)


def spec(schema, after: int) -> ConstraintSpec:
    return ConstraintSpec("json_schema", json.dumps(schema), options=json.dumps({"close_after": after}))


def written(matcher, tokenizer, rng: random.Random, most: int, *, jump: bool = False) -> tuple[list[int], bool]:
    """Ids of a model without sense, up to the end or ``most`` of them."""
    row = np.zeros((tokenizer.vocab_size + 31) // 32, np.uint32)
    ids: list[int] = []
    while len(ids) < most and not matcher.finished:
        run = matcher.forced() if jump else []
        if not run:
            matcher.fill_mask(row)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            run = [int(rng.choice(allowed))]
        if run[0] in tokenizer.end_ids:
            return ids, True
        assert matcher.advance(run)
        ids += run
    return ids, matcher.finished


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
@pytest.mark.parametrize("seed", range(3))
def test_the_value_ends_soon_and_is_whole(tokenizer, schema, seed):
    matcher = compile(spec(schema, 30), tokenizer).matcher()
    ids, ended = written(matcher, tokenizer, random.Random(seed), 400)
    assert ended, tokenizer.text(ids)
    text = tokenizer.text(ids)
    json.loads(text)
    plain = compile(ConstraintSpec("json_schema", json.dumps(schema)), tokenizer).matcher()
    assert plain.advance(ids) and plain.can_end, text


def test_nothing_changes_before(tokenizer):
    ids, _ = written(compile(spec(TREE, 30), tokenizer).matcher(), tokenizer, random.Random(5), 30)
    plain = ConstraintSpec("json_schema", json.dumps(TREE))
    assert ids == written(compile(plain, tokenizer).matcher(), tokenizer, random.Random(5), 30)[0]


def test_forks_and_rollbacks_keep_their_place(tokenizer):
    matcher = compile(spec({"type": "string"}, 3), tokenizer).matcher()
    row, other = (np.zeros((tokenizer.vocab_size + 31) // 32, np.uint32) for _ in range(2))
    assert matcher.advance(tokenizer.encode('"a b c'))
    matcher.fill_mask(row)
    twin = matcher.fork()
    matcher.rollback(2)
    matcher.fill_mask(other)
    assert np.unpackbits(other.view(np.uint8)).sum() > 1000
    twin.fill_mask(other)
    assert (row == other).all() and np.unpackbits(row.view(np.uint8)).sum() == 1


def test_the_worker_gets_the_option_with_the_lowered_form(tokenizer):
    bounded = BoundedCompiler(tokenizer)
    try:
        lowered = bounded.check(spec({"type": "string"}, 3))
    finally:
        bounded.close()
    ids, ended = written(compile(lowered, tokenizer).matcher(), tokenizer, random.Random(1), 40)
    assert ended and len(ids) < 40
