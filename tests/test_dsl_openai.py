"""Programs on a service that speaks OpenAI's API: our own server, through the official client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dsl_oracle import oracle_engine
from dsl_server import served

import ramet as rt

pytest.importorskip("openai")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with oracle_engine(tmp_path_factory.mktemp("model")) as engine, served(engine) as address:
        yield f"{address}/v1"


@pytest.fixture
def chat(url: str) -> Iterator[rt.OpenAI]:
    service = rt.OpenAI("default", base_url=url)
    yield service
    service.close()


def test_a_conversation(chat: rt.OpenAI) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += rt.system("Rules.") + rt.user("Hello") + rt.assistant(rt.gen("a", max_tokens=5))
        forks = s.fork(2)
        forks += rt.user("more") + rt.assistant(rt.gen("b", max_tokens=4))
        forks.join()
        s += rt.user("n") + rt.assistant(rt.gen("c", max_tokens=3, n=2))

    state = program.run(backend=chat, seed=1)
    assert [m["role"] for m in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert state.messages()[2]["content"] == state["a"] and len(state["b"]) == 2 and len(state["c"]) == 2
    assert chat.token_usage.completion_tokens == 5 + 2 * 4 + 2 * 3
    streamed = program.run(backend=chat, seed=1, stream=True)
    assert "".join(streamed.text_iter()) == state.text()


def test_plain_text(url: str) -> None:
    service = rt.OpenAI("default", base_url=url, is_chat=False)

    @rt.function
    def program(s: rt.State) -> None:
        s += "Once" + rt.gen("a", max_tokens=4, temperature=0) + " and " + rt.gen("b", max_tokens=4, temperature=0)

    state = program.run(backend=service)
    assert state.text() == f"Once{state['a']} and {state['b']}"
    service.close()


def test_one_call_ahead_serves_several_gens(url: str) -> None:
    service = rt.OpenAI("default", base_url=url, is_chat=False)

    @rt.function(num_api_spec_tokens=60)
    def program(s: rt.State) -> None:
        s += "Once" + rt.gen("a", stop=" w", max_tokens=30, temperature=0)
        s += " w" + rt.gen("b", stop=" w", max_tokens=30, temperature=0)

    @rt.function
    def whole(s: rt.State) -> None:
        s += "Once" + rt.gen("x", max_tokens=60, temperature=0)

    text = whole.run(backend=service).text()
    used = service.token_usage.prompt_tokens
    service.token_usage.reset()
    state = program.run(backend=service)
    assert state.text() == f"Once{state['a']} w{state['b']}" and text.startswith(state.text())
    assert service.token_usage.prompt_tokens == used, "one call"
    service.close()


def test_what_such_a_service_cannot_do_is_said(url: str) -> None:
    strict = rt.OpenAI("default", base_url=url, extensions=False)

    @rt.function
    def program(s: rt.State, what: rt.Function) -> None:  # type: ignore[type-arg]
        s += rt.user("x") + rt.assistant(what)

    for part, message in (
        (rt.select("x", ["a", "b"]), "select needs the log-prob"),
        ("Begin " + rt.gen("x"), "num_api_spec_tokens"),
        (rt.gen("x", regex="a"), "does not enforce a regex"),
        (rt.gen("x", top_k=3), "has no top_k"),
        (rt.gen("x", return_logprob=True), "Log-prob|log-prob"),
    ):
        with pytest.raises(rt.ProgramError, match=message):
            program.run(part, backend=strict).text()
    with pytest.raises(rt.ProgramError, match="nope") as caught:
        program.run(rt.gen("x"), backend=rt.OpenAI("nope", base_url=url)).text()
    assert isinstance(caught.value.cause, rt.RametError)
    strict.close()
