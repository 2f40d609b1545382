"""A matcher's answers agree with each other: mask, advance, forced ids, rollback, fork, end."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ramet.runtime.constrain import compile
from ramet.runtime.constrain.vocabulary import missing_bytes
from ramet.runtime.protocol.errors import InvalidConstraint, UnsupportedConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)


def matcher_of(tokenizer, schema):
    return compile(ConstraintSpec("json_schema", json.dumps(schema)), tokenizer).matcher()


def allowed(matcher, tokenizer) -> set[int]:
    row = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
    matcher.fill_mask(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def test_forced_ids_spell_what_must_follow(tokenizer):
    matcher = matcher_of(tokenizer, SCHEMA)
    forced = matcher.forced()
    assert forced and b'{"name":"'.startswith(tokenizer.decode(forced))
    assert matcher.advance(forced)


def test_a_refused_id_leaves_the_state_as_it_was(tokenizer):
    matcher = matcher_of(tokenizer, SCHEMA)
    before = allowed(matcher, tokenizer)
    good = tokenizer.encode('{"name":"x"')
    bad = tokenizer.encode("]")
    assert not matcher.advance(good + bad)
    assert allowed(matcher, tokenizer) == before
    assert matcher.advance(good)


def test_every_end_id_is_allowed_exactly_where_the_text_may_end(tokenizer):
    matcher = matcher_of(tokenizer, {"type": "integer"})
    ends = set(tokenizer.end_ids)
    assert not ends & allowed(matcher, tokenizer)
    matcher.advance(tokenizer.encode("1"))
    assert ends <= allowed(matcher, tokenizer)
    assert matcher.can_end and not matcher.finished


def test_rollback_passes_over_the_end(tokenizer):
    matcher = matcher_of(tokenizer, SCHEMA)
    ids = tokenizer.encode('{"name":"x","age":1}')
    assert matcher.advance(ids) and matcher.finished
    assert matcher.advance([tokenizer.end_ids[0]])
    matcher.rollback(2)
    assert not matcher.finished
    assert matcher.advance(ids[-1:]) and matcher.finished


def test_forks_are_independent(tokenizer):
    matcher = matcher_of(tokenizer, SCHEMA)
    matcher.advance(tokenizer.encode('{"name":"'))
    twin = matcher.fork()
    assert twin.advance(tokenizer.encode('a","age":2}')) and twin.finished
    assert not matcher.finished
    assert matcher.advance(tokenizer.encode('b","age":3}'))


def test_what_cannot_be_enforced_is_named(tokenizer):
    with pytest.raises(UnsupportedConstraint) as caught:
        matcher_of(tokenizer, {"properties": {"a/b": {"not": {"unevaluatedItems": False}}}})
    assert caught.value.keyword == "unevaluatedItems"
    assert caught.value.pointer == "/properties/a~1b/not/unevaluatedItems"


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec("regex", "a("),
        ConstraintSpec("choice", "[]"),
        ConstraintSpec("json_schema", "{"),
        ConstraintSpec("json_schema", '{"type": [{"a": 1}]}'),
        ConstraintSpec("nonsense", "x"),
        ConstraintSpec("lark", "start: nothing"),
    ],
)
def test_bad_specifications_are_invalid(tokenizer, spec):
    with pytest.raises(InvalidConstraint):
        compile(spec, tokenizer)


UNSPEAKABLE = "\U00040000"  # its first byte is in no token of the model


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", UNSPEAKABLE),
        ("regex", f"a{UNSPEAKABLE}b"),
        ("regex", f"(?:{UNSPEAKABLE}|\U00080001)"),
        ("regex", f"[{UNSPEAKABLE}-\U000bfffd]{{2,3}}"),
        ("regex", "a\\x1d"),
        ("regex", "[\x13\x14]"),
        ("choice", json.dumps([UNSPEAKABLE])),
        ("choice", json.dumps(["a\x04"])),
        ("json_schema", json.dumps({"const": UNSPEAKABLE})),
        ("json_schema", json.dumps({"enum": [{"k": [f"x{UNSPEAKABLE}"]}]})),
        ("json_schema", json.dumps({"type": "string", "pattern": f"^{UNSPEAKABLE}+$"})),
        ("json_schema", json.dumps({"type": "object", "properties": {UNSPEAKABLE: {}}, "required": [UNSPEAKABLE]})),
    ],
)
@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_text_that_no_token_spells_is_refused(tokenizer, kind, text, whitespace):
    with pytest.raises(UnsupportedConstraint, match="no token of the model can spell"):
        compile(ConstraintSpec(kind, text, whitespace), tokenizer)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", f"[a{UNSPEAKABLE}]"),
        ("regex", "[^a]x"),
        ("regex", "\U0001f600|\U0010ffff"),
        ("json_schema", json.dumps({"const": "a\x04\x1d"})),
        ("json_schema", json.dumps({"type": "string", "pattern": "^[\x13\x14]$"})),
        ("json_schema", json.dumps({"type": "string", "minLength": 2, "maxLength": 3})),
    ],
)
def test_a_text_that_can_be_spelled_is_reached(tokenizer, kind, text):
    """Whatever the mask offers is taken, up to the end."""
    matcher = compile(ConstraintSpec(kind, text), tokenizer).matcher()
    for _ in range(40):
        if matcher.can_end:
            return
        forced = matcher.forced()
        if forced:
            assert matcher.advance(forced)
            continue
        offered = sorted(allowed(matcher, tokenizer))
        assert offered and all(matcher.fork().advance((token,)) for token in offered[:: len(offered) // 50 + 1])
        assert matcher.advance((offered[0],))
    pytest.fail("no end")


def test_missing_bytes():
    assert missing_bytes([bytes(range(255))]) == {255}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("lark", 'start: "a" | "b\\x04"\n'),
        ("lark", "start: /a[\\x04]/\n"),
        ("lark", 'start: x // "fine"\nx: "ok" "\\x04"\n'),
        ("gbnf", 'root ::= "a" "\\x04"\n'),
    ],
)
def test_a_grammar_that_asks_for_a_byte_without_a_token_is_refused_by_name(tokenizer, kind, text):
    assert b"\x04" not in b"".join(tokenizer.token_table)
    with pytest.raises(UnsupportedConstraint, match=r"0x04|U\+0004") as refusal:
        compile(ConstraintSpec(kind, text), tokenizer)
    assert refusal.value.keyword == kind


@pytest.mark.parametrize(
    "text",
    [
        'start: "a" /[^a]+/ // never "\\x04"\n',
        "start: /[\\x00-\\x7f]+/\n",
        'start: %json {"type": "string", "const": "a\\u0001"} "é"\n',
    ],
)
def test_a_grammar_that_can_be_written_is_not_refused(tokenizer, text):
    compile(ConstraintSpec("lark", text), tokenizer)


FORCED = [
    ({"ssid": {"type": "string"}, "band": {"enum": ["5 GHz"]}}, ["ssid", "band"], "", '{"ssid":"', False),
    ({"orderId": {"type": "string"}, "orderName": {"type": "string"}}, [], '{"', "order", False),
    (
        {"first_name": {"enum": ["Al"]}, "last_name": {"enum": ["Bo"]}},
        ["first_name", "last_name"],
        "",
        '{"first_name":"Al","last_name":"Bo"}',
        True,
    ),
    ({"k": {"enum": ["v"]}}, ["k"], '{"k"', ':"v"}', True),
]


@pytest.mark.parametrize(("properties", "required", "text", "wanted", "all_of_it"), FORCED)
def test_forced_ids_are_a_beginning_of_the_forced_text(tokenizer, properties, required, text, wanted, all_of_it):
    """Cases that other runtimes got wrong: blanks that were not there, a common beginning taken for a token."""
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    matcher = compile(ConstraintSpec("json_schema", json.dumps(schema)), tokenizer).matcher()
    assert matcher.advance(tokenizer.encode(text)) or not text
    ids = matcher.forced()
    spelled = b"".join(tokenizer.token_table[token] for token in ids)
    assert wanted.encode().startswith(spelled)
    if all_of_it:
        assert spelled == wanted.encode() and tokenizer.encode(wanted) == ids
        assert matcher.advance(ids) and matcher.finished
    if wanted == "order":
        for key in properties:
            assert tokenizer.encode(f'{text}{key}":')[1 : 1 + len(ids)] == ids
