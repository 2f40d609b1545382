"""Programs on the real model: equal to the HTTP API and to the chat template, id for id."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.frontend_lang.backend import Piece
from ramet.frontend_lang.loop import LoopThread
from ramet.frontend_lang.token_branch import TokenBranch
from ramet.runtime import store
from ramet.runtime.tokenizer import Tokenizer

import ramet as rt
from ramet.engine_backend import EngineBackend

SPELLED = st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_characters="\x00\x04\x06\x13\x14\x16\x1d")
TEXT = st.text(SPELLED, max_size=30)


@pytest.fixture(scope="module")
def codec(model_dir: Path) -> Iterator[EngineBackend]:
    """The engine's text side alone: no processes."""
    folder = store.open(model_dir)
    tokenizer = Tokenizer.load(folder)
    loop = LoopThread()
    yield EngineBackend(loop, None, tokenizer, folder.meta)  # type: ignore[arg-type]
    loop.close()


def encoded(codec: EngineBackend, pieces: list[Piece]) -> list[int]:
    return codec.loop.wait(codec.encode(pieces, start=True))


@given(parts=st.lists(TEXT, max_size=5))
@settings(max_examples=60, deadline=None)
def test_pieces_of_text_are_encoded_as_one_text(codec: EngineBackend, parts: list[str]) -> None:
    assert encoded(codec, [Piece(part) for part in parts]) == codec.tokenizer.encode("".join(parts))


@given(
    first=st.tuples(st.sampled_from(["system", "user"]), TEXT),
    rest=st.lists(st.tuples(st.sampled_from(["user", "assistant"]), TEXT), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_roles_give_the_ids_of_the_chat_template(
    codec: EngineBackend, first: tuple[str, str], rest: list[tuple[str, str]]
) -> None:
    turns = [first, *rest]
    branch = TokenBranch(codec)
    for index, (role, content) in enumerate(turns):
        branch.role_begin(role, index == 0)
        branch.append(content)
        branch.role_end(role)
    branch.role_begin("assistant", False)
    ids = encoded(codec, branch._pending)
    messages = [{"role": role, "content": content} for role, content in turns]
    assert ids == codec.template.ids(messages)


def test_control_tokens_in_a_users_text_stay_text(codec: EngineBackend) -> None:
    ids = encoded(codec, [Piece("a<|im_end|>b"), Piece("<|im_end|>", special=True)])
    assert [token for token in ids if token in codec.tokenizer.special_ids] == [ids[-1]]


# ---------------------------------------------------------------- with the engine


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[rt.Engine]:
    with rt.Engine(progress=False) as running:
        yield running


def post(engine: rt.Engine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request to the HTTP frontend, on the engine's own client."""
    import httpx
    from ramet.runtime.frontend.http import create_app

    backend = engine.backend
    app = create_app(backend.client, engine._session.folder, tokenizer=backend.tokenizer)

    async def send() -> dict[str, Any]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=300) as client:
            reply = await client.post(path, json={"model": "default", **body})
            assert reply.status_code == 200, reply.text
            return dict(reply.json())

    return engine._loop.wait(send())


@pytest.mark.slow
def test_ids_equal_those_of_v1_completions(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State, prompt: str) -> None:
        s += prompt + rt.gen("x", max_tokens=6)

    for prompt, options in (("The capital of France is", {"temperature": 0}), ("Once upon", {"seed": 5})):
        state = program.run(prompt, backend=engine, **options)
        reply = post(engine, "/v1/completions", {"prompt": prompt, "max_tokens": 6, **options})
        assert state["x"] == reply["choices"][0]["text"]
        assert state.get_meta_info("x")["prompt_tokens"] == reply["usage"]["prompt_tokens"]
        ids = state.token_ids()
        again = engine.generate(input_ids=ids[:-6], sampling_params={"max_new_tokens": 6, **options})
        assert again["output_ids"] == ids[-6:]


@pytest.mark.slow
def test_roles_equal_v1_chat_completions(engine: rt.Engine) -> None:  # D46
    @rt.function
    def program(s: rt.State) -> None:
        s += rt.user("Hi") + rt.assistant(rt.gen("x", max_tokens=5, temperature=0))

    state = program.run(backend=engine)
    messages = [{"role": "user", "content": "Hi"}]
    reply = post(engine, "/v1/chat/completions", {"messages": messages, "max_tokens": 5, "temperature": 0})
    assert state["x"] == reply["choices"][0]["message"]["content"]
    assert state.get_meta_info("x")["prompt_tokens"] == reply["usage"]["prompt_tokens"]
    assert state.messages()[0]["role"] == "system"


@pytest.mark.slow
@pytest.mark.parametrize(
    "choices", [["John", "John Doe"], ["No I need support", "No I am not ok"], [" Yes", " Yes, but"]]
)
def test_either_of_two_choices_that_share_a_prefix_can_win(engine: rt.Engine, choices: list[str]) -> None:  # D36
    @rt.function
    def program(s: rt.State, likely: str) -> None:
        s += (f"Answer:{likely}.\n" * 12 + "Answer:") + rt.select("x", choices)
        s += "."

    for likely in choices:
        state = program.run(likely, backend=engine)
        assert state["x"] in choices
        scores = state.get_meta_info("x")["normalized_prompt_logprobs"]
        assert all(-100 < score < 0 for score in scores)
        if likely == choices[1]:
            assert state["x"] == likely


@pytest.mark.slow
@pytest.mark.parametrize("choices", [[" YES", " NO"], ["YES", "NO"]])
@pytest.mark.parametrize("prompt", ["Verdict:", "Verdict: "])
def test_scores_are_those_of_the_whole_text(engine: rt.Engine, prompt: str, choices: list[str]) -> None:  # D37
    @rt.function
    def program(s: rt.State) -> None:
        s += prompt + rt.select("x", choices)

    state = program.run(backend=engine)
    assert state.text() == prompt + state["x"]
    meta = state.get_meta_info("x")
    for choice, row in zip(choices, meta["input_token_logprobs"], strict=True):
        assert "".join(text for _, _, text in row) == meta["healed"] + choice
        ids = engine.backend.tokenizer.encode(prompt + choice)
        start = len(ids) - len(row)
        whole = engine.generate(
            input_ids=ids, sampling_params={"max_new_tokens": 1}, return_logprob=True, logprob_start_len=start
        )
        by_hand = whole["meta_info"]["input_token_logprobs"]
        assert [token for _, token, _ in by_hand] == [token for _, token, _ in row]
        for (mine, _, _), (theirs, _, _) in zip(row, by_hand, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("space", ["", " "])
def test_a_trailing_space_is_kept_as_it_was_written(engine: rt.Engine, space: str) -> None:  # D38
    @rt.function
    def program(s: rt.State) -> None:
        s += f"two plus two is{space}" + rt.gen("x", regex="four")

    state = program.run(backend=engine)
    assert state["x"] == "four" and state.text() == f"two plus two is{space}four"


@pytest.mark.slow
def test_streams_of_choices_and_later_gens(engine: rt.Engine) -> None:  # D50
    @rt.function
    def program(s: rt.State) -> None:
        s += "The sky is blue. Is this a number or a word? " + rt.gen("type", choices=["number", "word"])
        if s["type"] == "number":
            s += ": " + rt.gen("value", max_tokens=4, regex="[0-9]{2}")
        else:
            s += ": " + rt.gen("value", max_tokens=4, regex="[a-z]{4}")

    state = program.run(stream=True, backend=engine)
    assert "".join(state.text_iter("type")) == state["type"]
    assert "".join(state.text_iter("value")) == state["value"]
    assert "".join(state.text_iter()) == state.text()


@pytest.mark.slow
@pytest.mark.parametrize("generator", [False, True])
def test_one_over_long_item_of_ten(engine: rt.Engine, generator: bool) -> None:  # D51
    @rt.function
    def program(s: rt.State, text: str) -> None:
        s += text + rt.gen("x", max_tokens=2)

    words = int(engine.backend.client.context or 8192) + 10
    items = [{"text": "word " * (words if i == 9 else 3)} for i in range(10)]
    bar = io.StringIO()
    with redirect_stderr(bar):
        batch = program.run_batch(items, num_threads=4, progress_bar=True, generator_style=generator, backend=engine)
        states = list(batch)
    assert "10/10" in bar.getvalue()
    assert all(state.error() is None and state["x"] for state in states[:9])
    assert isinstance(states[9].error(), rt.ProgramError)
    with pytest.raises(rt.ProgramError, match="context"):
        states[9]["x"]


@pytest.mark.slow
def test_join_gathers_what_the_parent_had_too(engine: rt.Engine) -> None:  # D52
    @rt.function
    def program(s: rt.State) -> None:
        s += "One:" + rt.gen("a", max_tokens=2)
        forks = s.fork(3)
        forks += lambda i: f" {i}" + rt.gen("a", max_tokens=2) + rt.gen("b", max_tokens=2)
        forks.join()

    state = program.run(backend=engine)
    assert len(state["a"]) == len(state["b"]) == 3
    assert state.text().startswith("One:") and len(state.get_meta_info("b")) == 3


@pytest.mark.slow
def test_a_schema_gives_its_model(engine: rt.Engine) -> None:
    from pydantic import BaseModel, Field

    class City(BaseModel):
        name: str = Field(max_length=12)
        capital: bool

    city = rt.gen("city", schema=City, max_tokens=40, temperature=0)

    @rt.function
    def program(s: rt.State) -> City:
        s += rt.user("Which city is the capital of France?") + rt.assistant(city)
        return s[city]

    state = program.run(backend=engine)
    found = state.result()
    assert isinstance(found, City) and state.parsed("city") == found
    assert state.get_meta_info("city")["forced_tokens"] > 0
