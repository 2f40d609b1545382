"""Items that must differ do, whatever they are and however they are cut into tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ramet.runtime.constrain import compile
from ramet.runtime.constrain.scanner import feed, start
from ramet.runtime.protocol.messages import ConstraintSpec

from ramet.testing import accepts

UNIQUE = {"type": "array", "uniqueItems": True}


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (UNIQUE | {"items": {"type": "string"}}, '["a","ab","","b"]', '["a","ab","a"]'),
        (UNIQUE | {"items": {"type": "string"}}, '["x\\n","x"]', '["x\\n","x\\n"]'),
        (UNIQUE | {"items": {"type": "number"}}, "[1,10,1.5,-1]", "[1,2,1.0]"),
        (UNIQUE | {"items": {"type": "integer"}}, "[12,1,2]", "[12,1,12]"),
        (UNIQUE, '[1,"1",true,null,[1],{"a":1}]', "[1,true,true]"),
        (UNIQUE, "[[1],[2],[]]", "[[1],[2],[1]]"),
        (UNIQUE, '[{"a":1,"b":2},{"a":1}]', '[{"a":1,"b":2},{"b":2,"a":1}]'),
        (
            {"type": "object", "properties": {"t": UNIQUE | {"items": {"type": "string"}}, "u": {"type": "array"}}},
            '{"u":[1,1],"t":["b","a"]}',
            '{"u":[1,1],"t":["b","b"]}',
        ),
        ({"additionalProperties": UNIQUE}, '{"x":[1,2],"y":[1]}', '{"x":[1,2],"y":[1,1]}'),
        ({"items": UNIQUE}, "[[1],[1]]", "[[1],[1,1]]"),
        (UNIQUE | {"items": {"enum": ["a", "b", "c"]}}, '["c","a"]', '["c","c"]'),
        (UNIQUE | {"items": {"type": "boolean"}}, "[true,false]", "[true,true]"),
    ],
)
def test_only_items_that_differ(schema, good, bad):
    assert accepts(schema, good)
    assert not accepts(schema, bad)
    assert not accepts(schema, bad.replace(",", ", "))


def test_the_mask_agrees_with_advance(tokenizer):
    """Every id that the mask allows can be taken, in states where items repeat easily."""
    matcher = compile(
        ConstraintSpec("json_schema", json.dumps(UNIQUE | {"items": {"type": "string", "pattern": "^[ab]{1,9}$"}})),
        tokenizer,
    ).matcher()
    row = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
    for token in tokenizer.encode('["a","b","ab","aab","ba"'):
        matcher.fill_mask(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        for candidate in allowed.tolist():
            if candidate in tokenizer.end_ids:
                continue
            twin = matcher.fork()
            assert twin.advance([candidate]), tokenizer.token_bytes(candidate)
        assert matcher.advance([token])


def test_rollback_forgets_items(tokenizer):
    matcher = compile(
        ConstraintSpec("json_schema", json.dumps(UNIQUE | {"items": {"type": "string"}})), tokenizer
    ).matcher()
    assert matcher.advance(tokenizer.encode('["cat"'))
    more = tokenizer.encode(',"dog"')
    assert matcher.advance(more)
    matcher.rollback(len(more))
    assert matcher.advance(more)
    assert not matcher.advance(more)
    twin = matcher.fork()
    assert not twin.advance(tokenizer.encode(',"cat"'))
    assert twin.advance(tokenizer.encode("]")) and twin.finished


def test_the_scanner_finds_the_same_items_however_the_text_is_cut():
    from ramet.runtime.constrain.scanner import Place

    def nowhere(_):
        return None

    text = json.dumps([1, 2.5, "a]b", {"k": [1, 1]}, [], True, '\\"', -3e4]).encode()
    place = Place(True, nowhere, nowhere)
    for cut in range(1, len(text)):
        state = start(place)
        for begin in range(0, len(text), cut):
            state = feed(state, text[:begin], text[begin : begin + cut])
            assert state is not None
        assert state.frame is None
    assert feed(start(place), b"", b"[1, 2, 1.0]") is None
