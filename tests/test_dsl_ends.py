"""Ends by regular expressions, and prompts that end inside a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dsl_server import served
from dsl_waiting import idle
from hypothesis import given
from hypothesis import strategies as st
from ramet.frontend_lang.backend import GenCall
from ramet.frontend_lang.fake import FakeBackend
from ramet.frontend_lang.healing import healing_call
from ramet.frontend_lang.stop_regex import RegexStop
from ramet.runtime import store

import ramet as rt

# ---------------------------------------------------------------- stop_regex


@given(
    data=st.data(), text=st.text("ab1é€😀 ", max_size=20), pattern=st.sampled_from(["1+", "b|ab1", "é", "a b", "😀$"])
)
def test_the_end_does_not_depend_on_how_ids_arrive(data: st.DataObject, text: str, pattern: str) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=6)))
    pieces = [raw[i:j] for i, j in zip([0, *cuts], [*cuts, len(raw)], strict=True) if i < j]
    whole = RegexStop([pattern], pieces.__getitem__).feed(range(len(pieces)))
    watch = RegexStop([pattern], pieces.__getitem__)
    single = next((hit for i in range(len(pieces)) if (hit := watch.feed([i])) is not None), None)
    assert whole == single
    if whole is not None:
        assert b"".join(pieces[: whole.kept]) + whole.leftover == whole.text.encode()
        assert text.startswith(whole.text + whole.matched) and whole.seen > whole.kept - 1


def test_a_text_ends_where_an_expression_matches() -> None:
    for chunk in (1, 3, 50):
        fake = FakeBackend(["the answer is 42, END", "next"], chunk=chunk)

        @rt.function
        def program(s: rt.State) -> None:
            s += "Q: " + rt.gen("a", stop_regex=[r"[0-9]+", "x"])
            s += "|" + rt.gen("b", stop_regex="zzz")

        state = program.run(backend=fake)
        assert state["a"] == "the answer is " and state["b"] == "next"
        assert state.text() == "Q: the answer is |next" == fake.requests[1].text + state["b"]
        meta = state.get_meta_info("a")
        assert meta["finish_reason"] == {"type": "stop", "matched": "4"}
        assert meta["completion_tokens"] == len("the answer is 4") and idle(fake)
        assert fake.requests[0].cancelled or chunk == 50
        assert "".join(program.run(backend=FakeBackend(["a 1", "b"]), stream=True).text_iter("a")) == "a "
        fake.close()


def test_expressions_go_with_stops_limits_and_choices() -> None:
    def script(prompt: str, call: GenCall) -> str:
        return {"#1": "one 1 ."}.get(prompt[-2:], "none, stop here 7")

    fake = FakeBackend(script)

    @rt.function
    def program(s: rt.State) -> None:
        s += "Q" + rt.gen("a", n=2, stop_regex="[0-9]", stop=" here") + rt.gen("b", stop_regex="[0-9]", max_tokens=4)

    state = program.run(backend=fake)
    assert state["a"] == ["none, stop", "one "] and state["b"] == "none"
    reasons = [meta["finish_reason"].get("matched") for meta in state.get_meta_info("a")]
    assert reasons == [" here", "1"] and state.get_meta_info("b")["finish_reason"] == {"type": "length"}
    fake.close()


@pytest.mark.parametrize(("given", "message"), [("(", "does not parse"), ("a*", "matches nothing"), ("", "non-empty")])
def test_bad_expressions_are_refused_where_they_are_written(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rt.gen("x", stop_regex=given)


# ---------------------------------------------------------------- healing


def test_what_healing_asks_for() -> None:
    call = GenCall(max_tokens=5, stop=("\n",))
    healed = healing_call(call, b" 1.")
    assert healed is not None and healed[1] == " 1." and healed[0].max_tokens == 6
    assert healed[0].constraint is not None and healed[0].constraint.text == " 1\\.(.|\\n)*"
    assert healing_call(call, b"a\n") is None, "the stop stands in what would be said again"
    assert healing_call(GenCall(max_tokens=5, stop=("ab",)), b"a") is None, "the stop could begin there"
    assert healing_call(call, "é".encode()[:1]) is None
    with pytest.raises(ValueError, match="heal=True goes with"):
        rt.gen("x", heal=True, schema={"type": "object"})


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[rt.Engine]:
    with rt.Engine(store.open(model_dir), kv_tokens=8192, context=1024, progress=False) as running:
        yield running


@rt.function
def site(s: rt.State, start: str, heal: bool) -> None:
    s += f"Links: http://example.com https://example.org http{start}"
    s += rt.gen("rest", max_tokens=4, temperature=0, heal=heal)
    s += " end" + rt.gen("more", max_tokens=2, temperature=0)


@pytest.mark.slow
def test_a_prompt_may_end_inside_a_token(engine: rt.Engine) -> None:
    plain, healed = (site.run(":", heal, backend=engine) for heal in (False, True))
    assert healed["rest"].startswith("//") and not plain["rest"].startswith("//")
    tokenizer = engine.backend.tokenizer
    assert tokenizer.text(healed.token_ids()) == healed.text()[: len(tokenizer.text(healed.token_ids()))]
    whole = site.run("://", False, backend=engine)
    assert whole.token_ids()[:12] == healed.token_ids()[:12], "the ids are those of the text as a whole"
    parts = list(site.run(":", True, backend=engine, stream=True).text_iter("rest"))
    assert "".join(parts) == healed["rest"] and len(parts) > 1
    # A token that begins no other, special tokens and generated ids are left alone.
    with served(engine) as url, rt.RuntimeEndpoint(url) as there:
        for compile in (False, True):
            (state,) = site.run_batch([(":", True)], backend=there, compile=compile)
            assert state.token_ids() == healed.token_ids() and state.text() == healed.text()


@pytest.mark.slow
def test_healed_branches_can_be_joined_and_forked(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State, heal: bool) -> None:
        s += "Links: http://example.com "
        forks = s.fork(2)
        forks += ["http:", "https:"]
        forks += rt.gen("rest", max_tokens=4, temperature=0, heal=heal)
        forks.join("concatenate")
        s += rt.gen("end", max_tokens=2, temperature=0, heal=heal)

    for heal in (False, True):
        state = program.run(heal, backend=engine)
        ids = state.token_ids()
        assert engine.backend.tokenizer.text(ids) == state.text()
        (compiled,) = program.run_batch([(heal,)], backend=engine, compile=True)
        assert compiled.token_ids() == ids


@pytest.mark.slow
def test_an_expression_ends_a_text_of_the_real_model(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "1, 2, 3, 4, 5, 6," + rt.gen("a", max_tokens=30, temperature=0, stop_regex=r"[0-9],\s*9")
        s += " and" + rt.gen("b", max_tokens=3, temperature=0)

    here = program.run(backend=engine)
    assert here["a"] == " 7, " and here.get_meta_info("a")["finish_reason"]["matched"] == "8, 9"
    assert engine.backend.tokenizer.text(here.token_ids()) == here.text()
    with served(engine) as url, rt.RuntimeEndpoint(url) as there:
        for compile in (False, True):
            (state,) = program.run_batch([()], backend=there, compile=compile)
            assert state.token_ids() == here.token_ids() and state["a"] == here["a"]
            mine, theirs = (one.get_meta_info("a") for one in (here, state))
            for key in ("prompt_tokens", "completion_tokens", "finish_reason", "output_ids"):
                assert mine[key] == theirs[key]
