"""A cut answer ends in as few tokens as any, and keeps as many as any: against a search that tries everything."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
import tokenizers
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from ramet.runtime.constrain import CompiledConstraint, Matcher, compile
from ramet.runtime.protocol.errors import ConstraintError
from ramet.runtime.protocol.messages import ConstraintSpec

from ramet.extraction.finish import Closer
from ramet.extraction.shortest.search import ends_alone
from ramet.extraction.verbatim import Binding

LETTERS = '{}[]":,-.+0123456789eEabcfulnrtsi\\'
JOINED = [
    *('":', '",', '"}', '{"', '":"', '","', "[", '["', '"]', '"]}', '"},', '"},{"', "]}", "}}", "},", "true", "null"),
    *("10", "12", "1,", "0}", "0]", "a,", 'ab"', "abc", 'a"', 'b",', '"a"', "bc", '"b":', '":[', "cab", 'c"}', '"":'),
]


@dataclass(frozen=True, eq=False)
class Small:
    """A tokeniser of some seventy tokens, id 0 the end."""

    hf: tokenizers.Tokenizer
    token_table: list[bytes]
    end_ids: tuple[int, ...] = (0,)
    fingerprint: str = "small"

    @property
    def vocab_size(self) -> int:
        return len(self.token_table)

    @property
    def definition(self) -> str:
        return self.hf.to_str()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.hf.encode(text, add_special_tokens=False).ids
        return ids


@lru_cache(maxsize=1)
def small() -> Small:
    """Each joined token is built from its letters, from the left, as BPE needs it."""
    tokens = ["<end>", *LETTERS]
    merges = []
    for word in sorted(JOINED, key=len):
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    model = tokenizers.models.BPE({token: number for number, token in enumerate(tokens)}, merges)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return Small(made, [b"", *(token.encode() for token in tokens[1:])])


class TooManyTexts(Exception):
    pass


def brute(matcher: Matcher, most: int) -> int | None:
    """Fewest tokens to an end, up to ``most``, by trying all of them. Raises TooManyTexts."""
    wave, seen = {b"": list[int]()}, {b""}
    for length in range(most + 1):
        following: dict[bytes, list[int]] = {}
        for text, ids in wave.items():
            assert matcher.advance(ids)
            if matcher.can_end:
                return length
            for token, spelled in enumerate(small().token_table):
                if spelled and text + spelled not in seen and matcher.advance([token]):
                    matcher.rollback(1)
                    seen.add(text + spelled)
                    following[text + spelled] = [*ids, token]
            matcher.rollback(len(ids))
        if len(seen) > 1500:
            raise TooManyTexts
        wave = following
    return None


def wander(constraint: CompiledConstraint, rng: random.Random, length: int) -> list[int]:
    """Up to ``length`` tokens that the constraint allows, drawn at random."""
    matcher, ids, row = constraint.matcher(), list[int](), np.zeros(8, np.uint32)
    while len(ids) < length:
        matcher.fill_mask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[1 : small().vocab_size]
        allowed = (np.flatnonzero(bits) + 1).tolist()
        if not allowed:
            break
        ids.append(rng.choice(allowed))
        assert matcher.advance(ids[-1:])
    return ids


def check(spec: ConstraintSpec, rng: random.Random, length: int, budget: int) -> None:
    """Of an answer that is cut after ``length`` random tokens."""
    constraint = compile(spec, small())
    ids = wander(constraint, rng, length)
    closed = Closer(small()).close(spec, ids, budget)  # type: ignore[arg-type]

    def after(kept: int) -> Matcher:
        matcher = constraint.matcher()
        assert matcher.advance(ids[:kept])
        return matcher

    if closed is None:
        for kept in range(min(len(ids), budget) + 1):
            assert brute(after(kept), budget - kept) is None
        return
    assert len(closed) <= budget
    matcher = constraint.matcher()
    assert matcher.advance(closed) and matcher.can_end
    # Some number of ids was kept so that what follows is as short as any, and one more would have been too many.
    same = next((at for at, (one, other) in enumerate(zip(ids, closed, strict=False)) if one != other), len(ids))
    same = min(same, len(closed), len(ids))
    assert brute(after(same), len(closed) - same) == len(closed) - same
    if same < min(len(ids), budget):
        assert brute(after(same + 1), budget - same - 1) is None


SCALARS: list[dict[str, object]] = [
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["ab", "a", 'b"', "cab"]},
    {"const": "abc"},
    {"enum": [1, "a", None, 12.5]},
    {"type": "integer", "minimum": 0, "maximum": 120},
    {"type": "integer", "minimum": 10},
    {"type": "number", "multipleOf": 2},
    {"type": "number"},
    {"type": "string", "maxLength": 2},
    {"type": "string", "minLength": 2, "maxLength": 9},
    {"type": "string", "pattern": "^ab*c$"},
    {"type": "string", "pattern": "^(ab){2,3}c?$", "maxLength": 6},
    {"not": {"type": ["string", "number", "object", "array"]}},
]
KEYS = ("a", "b", "ab", "")


def larger(parts: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
    members = st.dictionaries(st.sampled_from(KEYS), parts, min_size=1, max_size=3)
    closed = st.tuples(members, st.sets(st.sampled_from(KEYS)), st.integers(0, 2)).map(
        lambda given: {
            "type": "object",
            "properties": given[0],
            "required": sorted(given[1] & set(given[0])),
            "minProperties": min(given[2], len(given[0])),
            "additionalProperties": False,
        }
    )
    mapped = parts.map(lambda part: {"type": "object", "additionalProperties": part, "minProperties": 1})
    arrays = st.tuples(parts, st.integers(0, 2), st.integers(0, 2), st.booleans()).map(
        lambda given: {
            "type": "array",
            "items": given[0],
            "minItems": given[1],
            "maxItems": given[1] + given[2],
            "uniqueItems": given[3],
        }
    )
    rows = st.lists(parts, min_size=1, max_size=2).map(
        lambda given: {"type": "array", "prefixItems": given, "items": False, "minItems": 1}
    )
    either = st.lists(parts, min_size=2, max_size=2).map(lambda given: {"anyOf": given})
    return st.one_of(closed, mapped, arrays, rows, either)


SCHEMAS = st.recursive(st.sampled_from(SCALARS), larger, max_leaves=4)


@pytest.mark.slow
@given(schema=SCHEMAS, seed=st.integers(0, 2**32), length=st.integers(0, 14), less=st.integers(-6, 3))
@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_no_end_is_shorter(schema: dict[str, object], seed: int, length: int, less: int) -> None:
    try:
        compile(ConstraintSpec("json_schema", json.dumps(schema)), small())
    except ConstraintError:  # no value satisfies it, or a combination that is refused
        assume(False)
    try:
        check(ConstraintSpec("json_schema", json.dumps(schema)), random.Random(seed), length, max(0, length - less))
    except TooManyTexts:
        assume(False)


@pytest.mark.parametrize("unit", ["words", "characters"])
@pytest.mark.parametrize("seed", range(12))
def test_no_copy_of_the_document_ends_sooner(unit: str, seed: int) -> None:
    copied = {"type": "string", "x-ramet-verbatim": unit, "minLength": 1 + seed % 3, "maxLength": 5}
    schema = {
        "type": "object",
        "properties": {"a": copied, "b": {"type": "array", "items": copied, "maxItems": 2}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    spec = Binding(schema).spec('ab "cab",\nabc-a 12 ac.ab')
    for length in (0, 3, 6, 9, 12):
        check(spec, random.Random(seed), length, length + seed % 4)


def recursive() -> dict[str, object]:
    return {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"type": "boolean"}}, "required": ["b"]}


@pytest.mark.parametrize("budget", range(2, 30, 3))
def test_a_schema_without_bounds_ends_as_soon(budget: int) -> None:
    for schema in (True, recursive()):
        with contextlib.suppress(TooManyTexts):
            check(ConstraintSpec("json_schema", json.dumps(schema)), random.Random(budget), budget, budget)


def texts(closed: Sequence[int] | None) -> str | None:
    return None if closed is None else b"".join(small().token_table[token] for token in closed).decode()


def test_what_the_budget_cannot_hold_is_refused() -> None:
    schema = {"type": "object", "properties": {"a": {"const": "abc"}}, "required": ["a"], "additionalProperties": False}
    spec = ConstraintSpec("json_schema", json.dumps(schema))
    closer = Closer(small())  # type: ignore[arg-type]
    lengths = [len(closed) for budget in range(12) if (closed := closer.close(spec, [], budget)) is not None]
    assert lengths and lengths == [min(lengths)] * len(lengths)
    assert texts(closer.close(spec, [], 11)) == '{"a":"abc"}'


def test_tokens_that_end_a_string_need_a_twin_for_what_is_left_out_of_a_document() -> None:
    assert ends_alone(small().token_table)
    assert ends_alone([b'a"', b'"', b'x"y', b'a",', b'",'])
    assert not ends_alone([b'a"', b'"', b'a",'])
