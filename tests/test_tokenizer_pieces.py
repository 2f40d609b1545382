"""Texts that are encoded piece by piece have the ids that the library gives for the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.tokenizer.pieces import Pieces, cuts_before_blanks

ALPHABET = [
    *"aZ   \n\t09.,'’-é漢🙂½\u0301\u00a0\r",
    "'s ",
    "<|im_end|>",
    "word ",
    "  two",
    " \n x",
    "the ",
    " ٣ ",
    "I'd ",
]
texts = st.lists(st.sampled_from(ALPHABET), max_size=60).map("".join)


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


@settings(max_examples=300, deadline=None)
@given(texts, texts, texts, st.booleans(), st.integers(1, 9))
def test_pieces_are_those_of_the_whole(
    tokenizer: Tokenizer, shared: str, one: str, other: str, special: bool, piece: int
) -> None:
    def whole(text: str, special: bool) -> list[int]:
        return tokenizer._whole(text, special)

    pieces = Pieces(whole, piece)
    for text in (shared + one, shared + other, shared + one):
        assert pieces.ids(text, special) == whole(text, special)


def test_a_long_text_is_encoded_once(tokenizer: Tokenizer) -> None:
    asked: list[str] = []

    def count(text: str, special: bool) -> list[int]:
        asked.append(text)
        return [len(text)]

    pieces = Pieces(count, 100)
    shared = "".join(f"number {i} of the words that all begin with, " for i in range(100))
    pieces.ids(shared + "and one", False)
    before = sum(map(len, asked))
    pieces.ids(shared + "and another", False)
    assert before > len(shared) and sum(map(len, asked)) - before < 400
    pieces.ids(shared, True)
    assert sum(map(len, asked)) > 2 * len(shared), "with control tokens it is another text"
    long = "the prompt of a program, sent again and again " * 60
    assert tokenizer.encode(long) == tokenizer.hf.encode(long, add_special_tokens=False).ids
    assert tokenizer._pieces is not None


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTE_LEVEL]}}, True),
        ({"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True}}, False),
        ({"pre_tokenizer": {**BYTE_LEVEL, "use_regex": False}}, False),
        ({"pre_tokenizer": {"type": "Metaspace"}}, False),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, BYTE_LEVEL]}}, False),
        ({"pre_tokenizer": None}, False),
        ({"normalizer": {"type": "Prepend"}}, False),
        ({"added_tokens": [{"content": "two words"}]}, False),
        ({"added_tokens": [{"content": "x", "rstrip": True}]}, False),
    ],
)
def test_only_tokenisers_that_surely_cut_there(change: dict[str, Any], expected: bool) -> None:
    file = {"normalizer": None, "pre_tokenizer": BYTE_LEVEL, "added_tokens": [{"content": "<|im_end|>"}]}
    assert cuts_before_blanks(json.dumps(file | change)) is expected
