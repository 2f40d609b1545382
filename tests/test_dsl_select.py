"""Choices: what is scored, what is appended, and which one wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from dsl_waiting import idle
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.frontend_lang.backend import Piece
from ramet.frontend_lang.choices import METHODS, TokenEntry, as_method
from ramet.frontend_lang.fake import START, FakeBackend, logprob

import ramet as rt

WORDS = ["Verdict:", " YES", " NO", "YES", "NO", " ", "John", " Doe", "No", " I", " am", " not"]


class WordBackend(FakeBackend):
    """Ids from 1000 on are words (longest match first), so that a prompt's last token may change with what follows."""

    async def encode(self, pieces: Sequence[Piece], start: bool) -> list[int]:
        text = "".join(piece.text for piece in pieces)
        ids: list[int] = []
        while text:
            word = max((w for w in WORDS if text.startswith(w)), key=len, default=None)
            ids.append(ord(text[0]) if word is None else 1000 + WORDS.index(word))
            text = text[len(word or "x") :]
        return ids

    def decode(self, ids: Sequence[int]) -> bytes:
        return b"".join(WORDS[i - 1000].encode() if i >= 1000 else bytes([i]) for i in ids if i != START)


@pytest.fixture
def words() -> Iterator[WordBackend]:
    backend = WordBackend()
    yield backend
    backend.close()


def chosen(backend: FakeBackend, prompt: str, choices: list[str], **options: Any) -> rt.State:
    @rt.function
    def program(s: rt.State) -> None:
        s += prompt + rt.select("x", choices, **options)

    state = program.run(backend=backend)
    state.sync()
    return state


@pytest.mark.parametrize("prompt", ["Verdict:", "Verdict: "])
@pytest.mark.parametrize("choices", [[" YES", " NO"], ["YES", "NO"]])
def test_tokens_join_to_the_healed_prefix_and_the_choice(words: WordBackend, prompt: str, choices: list[str]) -> None:
    state = chosen(words, prompt, choices)
    assert state["x"] in choices and state.text() == prompt + state["x"]
    meta = state.get_meta_info("x")
    for i, choice in enumerate(choices):
        tokens = meta["input_token_logprobs"][i]
        assert "".join(text for _, _, text in tokens) == meta["healed"] + choice
        # by hand: the whole sequence, in the encoding that its text has
        ids = words.loop.wait(words.encode([Piece(prompt + choice)], True))
        cut = len(ids) - len(tokens)
        assert [entry[0] for entry in tokens] == [logprob(ids[:p], ids[p]) for p in range(cut, len(ids))]
    assert state.token_ids() == words.loop.wait(words.encode([Piece(state.text())], True))


@pytest.mark.parametrize("choices", [["John", "John Doe"], ["No I am", "No I am not"], ["a", "ab", "abc"]])
def test_a_choice_may_be_a_prefix_of_another(words: WordBackend, choices: list[str]) -> None:
    meta = chosen(words, "Verdict:", choices).get_meta_info("x")
    lengths = [len(row) for row in meta["input_token_logprobs"]]
    assert all(lengths) and len(meta["normalized_prompt_logprobs"]) == len(choices)
    assert all(score < 0 for score in meta["normalized_prompt_logprobs"])


def test_generated_ids_in_front_are_not_touched(words: WordBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "q" + rt.gen("a", max_tokens=3)
        s += rt.select("x", ["John", "No"]) + rt.gen("b", max_tokens=2)

    state = program.run(backend=words)
    state.sync()
    first, second = words.requests
    assert second.prompt[: len(first.prompt) + 3] == [*first.prompt, *state["a"].encode()]
    assert state.text() == "q" + state["a"] + state["x"] + state["b"]
    assert idle(words)


def test_select_without_a_name_appends_its_text(words: WordBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "Verdict:" + rt.select(choices=[" YES", " NO"])

    assert program.run(backend=words).text() in ("Verdict: YES", "Verdict: NO")


def test_select_as_the_first_thing(words: WordBackend) -> None:
    assert chosen(words, "", ["YES", "NO"])["x"] in ("YES", "NO")


# ---------------------------------------------------------------- methods


def decide(method: str, rows: list[list[float]], alone: list[list[float]] | None = None) -> str:
    choices = [f"c{i}" for i in range(len(rows))]
    entries: list[list[TokenEntry]] = [[(value, 0, "t") for value in row] for row in rows]
    free: list[list[TokenEntry]] | None = None if alone is None else [[(v, 0, "t") for v in row] for row in alone]
    return (
        as_method(method)(
            choices=choices,
            normalized_prompt_logprobs=[sum(row) / len(row) for row in rows],
            input_token_logprobs=entries,
            output_token_logprobs=[[] for _ in rows],
            unconditional_token_logprobs=free,
        )
    ).decision


def test_each_method_by_a_case_that_tells_it_from_the_others() -> None:
    long_easy = [[-1.0], [-2.0, -0.1, -0.1, -0.1]]
    assert decide("token_length_normalized", long_easy) == "c1"
    assert decide("sum", long_easy) == "c0"
    assert decide("greedy_token_selection", long_easy) == "c0"
    assert decide("unconditional_likelihood_normalized", long_easy, [[-0.5], [-9.0, -0.1, -0.1, -0.1]]) == "c1"
    assert decide("greedy_token_selection", [[-0.1, -5.0], [-0.1, -4.0], [-0.2, -0.1]]) == "c1"


rows_of = st.lists(st.lists(st.floats(-20, -0.001), min_size=1, max_size=5), min_size=1, max_size=5)


@given(rows_of)
@settings(max_examples=50, deadline=None)
def test_every_method_returns_a_choice_and_does_not_depend_on_the_order_of_clear_winners(
    rows: list[list[float]],
) -> None:
    for name in METHODS:
        alone = [[-1.0] * len(row) for row in rows] if "unconditional" in name else None
        first = decide(name, rows, alone)
        index = int(first[1:])
        back = decide(name, rows[::-1], None if alone is None else alone[::-1])
        other = len(rows) - 1 - int(back[1:])
        assert (
            other == index
            or rows[other] == rows[index]
            or sum(rows[other]) == pytest.approx(sum(rows[index]))
            or (sum(rows[other]) / len(rows[other]) == pytest.approx(sum(rows[index]) / len(rows[index])))
        )


def test_unconditional_scores_are_of_the_choice_alone(words: WordBackend) -> None:
    state = chosen(words, "Verdict:", [" YES", " NO"], choices_method=rt.unconditional_likelihood_normalized)
    alone = state.get_meta_info("x")["unconditional_token_logprobs"]
    assert alone[0][0][0] == logprob([START], 1001) and alone[1][0][0] == logprob([START], 1002)


def test_a_scoring_class_of_ones_own(words: WordBackend) -> None:
    class Longest(rt.ChoicesSamplingMethod):
        def __call__(self, *, choices: list[str], **scores: Any) -> rt.ChoicesDecision:
            assert len(scores["input_token_logprobs"]) == len(choices)
            return rt.ChoicesDecision(max(choices, key=len), {"mine": 1})

    state = chosen(words, "Verdict:", ["a", "abc", "ab"], choices_method=Longest())
    assert state["x"] == "abc" and state.get_meta_info("x")["mine"] == 1

    class Wrong(rt.ChoicesSamplingMethod):
        def __call__(self, **_: Any) -> rt.ChoicesDecision:
            return rt.ChoicesDecision("other")

    with pytest.raises(rt.ProgramError, match="none of"):
        chosen(words, "Verdict:", ["a", "b"], choices_method=Wrong())


def test_max_tokens_zero_gives_the_next_tokens_alternatives_and_appends_nothing(words: WordBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "q" + rt.gen("p", max_tokens=0, return_logprob=True, top_logprobs_num=1) + "|" + rt.gen("b", max_tokens=1)

    state = program.run(backend=words)
    assert state["p"] == "" and state.text() == "q|" + state["b"]
    logprob_, token, text = state.get_meta_info("p")["output_top_logprobs"][0][0]
    assert logprob_ < 0 and text == chr(token)
    assert idle(words)
