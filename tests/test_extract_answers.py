"""Answers held to a schema over the real tokeniser: ended early, and weighed field by field."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Literal

import jsonschema
import numpy as np
import pytest
from pydantic import BaseModel, Field
from ramet.runtime.constrain import CompiledConstraint, compile
from ramet.runtime.frontend.partial_json import read
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.protocol.messages import TokenLogprob
from ramet.runtime.tokenizer import Tokenizer

from ramet.extraction.confidence import confidence
from ramet.extraction.examples import check, examples
from ramet.extraction.finish import Closer
from ramet.extraction.schema import Target, target


class Part(BaseModel):
    label: str = Field(min_length=3, max_length=60)
    weight: float | None
    tags: list[Literal["red", "green", "blue"]] = Field(min_length=1, max_length=3)


class Thing(BaseModel):
    name: str = Field(pattern=r"^[A-Z][a-z]{1,40}$")
    count: int = Field(ge=0, le=9999)
    note: str = Field(max_length=200)
    parts: list[Part] = Field(min_length=1, max_length=4)
    state: Literal["new", "used", "broken"]


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


@pytest.fixture(scope="module")
def goal() -> Target:
    return target(Thing)


@pytest.fixture(scope="module")
def constraint(tokenizer: Tokenizer, goal: Target) -> CompiledConstraint:
    return compile(goal.binding.spec(""), tokenizer)


def wander(constraint: CompiledConstraint, tokenizer: Tokenizer, length: int, rng: random.Random) -> list[int]:
    """Ids that the constraint allows, drawn at random: an answer of a model that knows nothing."""
    matcher, ids = constraint.matcher(), list[int]()
    row = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
    while len(ids) < length and not matcher.finished:
        step = matcher.forced()
        if not step:
            row[:] = 0
            matcher.fill_mask(row)
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: tokenizer.vocab_size]
            bits[list(tokenizer.end_ids)] = 0
            plain = np.flatnonzero(bits)
            if not len(plain):
                break
            step = [int(plain[rng.randrange(len(plain))])]
        assert matcher.advance(step)
        ids += step
    return ids[:length]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_cut_answer_ends_validly_inside_its_budget_or_is_refused(
    constraint: CompiledConstraint, tokenizer: Tokenizer, goal: Target, seed: int
) -> None:
    rng, closer = random.Random(seed), Closer(tokenizer)
    validator = jsonschema.Draft202012Validator(json.loads(goal.text))
    refused = kept = 0
    for budget in [*range(8, 60, 4), *range(60, 200, 20)]:
        ids = wander(constraint, tokenizer, budget, rng)
        closed = closer.close(goal.binding.spec(""), ids, budget)
        if closed is None:
            refused += 1
            assert budget < 60
            continue
        assert len(closed) <= budget
        text = tokenizer.decode(closed).decode()
        validator.validate(json.loads(text))
        kept += next((at for at, (a, b) in enumerate(zip(ids, closed, strict=False)) if a != b), len(closed))
    assert refused < 10 and kept > 0


def test_what_fits_is_kept_as_it_is(tokenizer: Tokenizer, goal: Target) -> None:
    text = '{"name":"Pot","count":1,"note":"","parts":[{"label":"lid","weight":null,"tags":["red"]}],"state":"new"}'
    whole = tokenizer.encode(text)
    closer = Closer(tokenizer)
    for cut in range(len(whole) - 8, len(whole)):
        closed = closer.close(goal.binding.spec(""), whole[:cut], len(whole) + 2)
        assert closed is not None
        assert closed[:cut] == whole[:cut]


def test_confidence_is_read_from_the_tokens_of_each_field(tokenizer: Tokenizer) -> None:
    text = '{"a":"é twenty","b":[1,true],"c":{}}'
    ids = tokenizer.encode(text)
    tokens = [tokenizer.token_bytes(token) for token in ids]
    logprobs = [TokenLogprob(-0.1 * (at + 1), -0.05 * (at + 1)) for at in range(len(ids))]
    found = confidence(text, read(text).leaves, tokens, logprobs)
    assert list(found) == ["/a", "/b/0", "/b/1", "/c"]
    starts = [sum(map(len, tokens[:at])) for at in range(len(tokens))]
    for name, value in (("/a", '"é twenty"'), ("/b/0", "1"), ("/c", "{}")):
        begin = text.encode().index(value.encode())
        end = begin + len(value.encode())
        over = [at for at, start in enumerate(starts) if start < end and start + len(tokens[at]) > begin]
        expected = math.exp(sum(-0.1 * (at + 1) for at in over) / len(over))
        assert found[name]["raw"] == pytest.approx(expected, abs=1e-5)
        assert found[name]["masked"] > found[name]["raw"]


def test_examples_that_break_the_schema_are_refused_before_anything_runs(tokenizer: Tokenizer, goal: Target) -> None:
    part = {"label": "lid", "weight": None, "tags": ["red"]}
    good = {"name": "Pot", "count": 1, "note": "", "parts": [part], "state": "new"}
    check(examples([("text", good)]), goal, tokenizer)
    for bad in ({**good, "state": "old"}, {**good, "parts": []}, {"name": "Pot"}, dict(reversed(good.items()))):
        with pytest.raises(InvalidRequest, match="example 2"):
            check(examples([("text", good), ("text", bad)]), goal, tokenizer)
