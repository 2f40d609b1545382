"""Programs through a server: the same as in the engine's own process."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest
from dsl_oracle import oracle_engine
from dsl_server import served

import ramet as rt
from ramet.endpoint import Unreachable


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rt.Engine]:
    with oracle_engine(tmp_path_factory.mktemp("model")) as running:
        yield running


@pytest.fixture(scope="module")
def url(engine: rt.Engine) -> Iterator[str]:
    with served(engine) as address:
        yield address


@pytest.fixture(scope="module")
def endpoint(url: str) -> Iterator[rt.RuntimeEndpoint]:
    with rt.RuntimeEndpoint(url) as connected:
        yield connected


@rt.function
def program(s: rt.State, topic: str) -> None:
    s += rt.system("Rules.") + rt.user(topic)
    s += rt.assistant(rt.gen("a", max_tokens=10, stop=" w3", return_logprob=True, top_logprobs_num=2))
    forks = s.fork(3)
    forks += rt.user("go on") + rt.assistant(rt.gen("b", max_tokens=8, n=2))
    forks.join()
    s += rt.user("choose") + rt.assistant(rt.select("c", ["one", "two", "onetwo"]))
    s += rt.gen("d", max_tokens=3, temperature=0)


def test_a_program_gives_the_same_through_engine_and_server(engine: rt.Engine, endpoint: rt.RuntimeEndpoint) -> None:
    here = program.run("x", backend=engine, seed=3)
    there = program.run("x", backend=endpoint, seed=3)
    assert here.text() == there.text() and here.messages() == there.messages()
    assert here.token_ids() == there.token_ids()
    for name in "abcd":
        assert here[name] == there[name]
    mine, theirs = here.get_meta_info("a"), there.get_meta_info("a")
    for key in ("prompt_tokens", "completion_tokens", "output_ids", "output_token_logprobs", "output_top_logprobs"):
        assert mine[key] == theirs[key]
    assert mine["finish_reason"] == theirs["finish_reason"]
    assert there.get_meta_info("d")["cached_tokens"] > 0, "the server's cache makes up for what is sent again"


@rt.function
def scattered(s: rt.State, topic: str) -> dict[str, object]:
    s += rt.system("Rules.") + rt.user(topic) + rt.assistant(rt.gen("a", max_tokens=10))
    forks = s.fork(3)
    for f in forks:
        f += rt.user("go on about " + s["a"]) + rt.assistant(rt.gen("b", max_tokens=8))
    forks.join()
    s += rt.user("choose") + rt.assistant(rt.select("c", ["one", "two"]))
    if s["c"] == "one":
        s += rt.gen("d", max_tokens=3, temperature=0)
    else:
        s += rt.gen("e", max_tokens=4, n=2)
    return {"parts": s["b"], "choice": s["c"]}


def test_a_compiled_program_is_one_request_and_gives_the_same(engine: rt.Engine, endpoint: rt.RuntimeEndpoint) -> None:
    compiled = scattered.compile()
    for topic in ("x", "yy", "zzz"):
        ways = [
            scattered.run(topic, backend=engine, seed=3),
            scattered.run(topic, backend=endpoint, seed=3),
            compiled.run(topic, backend=engine, seed=3),
            compiled.run(topic, backend=endpoint, seed=3),
        ]
        for other in ways[1:]:
            assert other.text() == ways[0].text() and other.result() == ways[0].result()
            assert other.messages() == ways[0].messages() and other["b"] == ways[0]["b"]
    meta = ways[3].get_meta_info("a")
    assert meta["output_ids"] == ways[0].get_meta_info("a")["output_ids"]


def test_compiled_batches_at_the_server(endpoint: rt.RuntimeEndpoint) -> None:
    items = [("a" * (5000 if i == 7 else 1),) for i in range(20)]
    states = list(scattered.compile().run_batch(items, backend=endpoint))
    assert [state.error() is not None for state in states] == [i == 7 for i in range(20)]
    with pytest.raises(rt.ProgramError, match="4096") as caught:
        states[7]["a"]
    assert caught.value.code == "context_length_exceeded" and caught.value.variable == "a"
    assert caught.value.where.file == __file__ and caught.value.where.line > 0


def test_batches_streams_and_prompt_logprobs(endpoint: rt.RuntimeEndpoint) -> None:
    states = list(program.run_batch([(f"t{i}",) for i in range(30)], backend=endpoint))
    assert [state.error() for state in states] == [None] * 30
    state = program.run("s", backend=endpoint, stream=True)
    assert "".join(state.text_iter()) == state.text()

    @rt.function
    def scored(s: rt.State) -> None:
        s += "Hello" + rt.gen("x", max_tokens=2, return_logprob=True, logprob_start_len=1)

    info = scored.run(backend=endpoint).get_meta_info("x")
    assert [text for _, _, text in info["input_token_logprobs"]] == list("ello")


def test_async_programs_share_connections(endpoint: rt.RuntimeEndpoint) -> None:
    @rt.function
    async def ask(s: rt.AsyncState, i: int) -> str:
        s += f"{i}:" + rt.gen("x", max_tokens=3)
        return str(await s["x"])

    async def main() -> None:
        states = await asyncio.gather(*(ask.run_async(i, backend=endpoint) for i in range(50)))
        assert all(state.result() for state in states)

    asyncio.run(main())


def test_branches_that_a_body_has_let_go_are_not_collected_at_work(endpoint: rt.RuntimeEndpoint) -> None:
    @rt.function
    def grown(s: rt.State, topic: str) -> list[str]:
        s += topic
        leaves = [s]
        for _ in range(3):
            children: list[rt.State] = []
            for leaf in leaves:
                forks = leaf.fork(2)
                forks += "/" + rt.gen("t", max_tokens=12)
                children.extend(forks)
            leaves = children
            del leaf, forks, children
            gc.collect()
        return [leaf["t"] for leaf in leaves]

    for _ in range(3):
        state = grown.run("x", backend=endpoint)
        assert len(state.result()) == 8


def test_errors_keep_their_kind(endpoint: rt.RuntimeEndpoint) -> None:
    @rt.function
    def long(s: rt.State) -> None:
        s += "a" * 5000 + rt.gen("x")

    with pytest.raises(rt.ProgramError, match="4096") as caught:
        long.run(backend=endpoint)["x"]
    assert isinstance(caught.value.cause, rt.InvalidRequest) and caught.value.code == "context_length_exceeded"

    @rt.function
    def bad(s: rt.State) -> None:
        s += "a" + rt.gen("x", regex="\\p{Nope}")

    with pytest.raises(rt.ProgramError) as caught:
        bad.run(backend=endpoint)["x"]
    assert isinstance(caught.value.cause, rt.ConstraintError)


def test_a_cancelled_program_ends_at_the_server(engine: rt.Engine, endpoint: rt.RuntimeEndpoint) -> None:
    @rt.function
    def endless(s: rt.State) -> None:
        s += "a" + rt.gen("x", max_tokens=3500)

    state = endless.run(backend=endpoint)
    time.sleep(0.3)
    state.cancel()
    with pytest.raises(rt.ProgramCancelled):
        state["x"]
    end = time.monotonic() + 5
    while engine.backend.client.open_requests and time.monotonic() < end:
        time.sleep(0.02)
    assert engine.backend.client.open_requests == 0


def test_controls(endpoint: rt.RuntimeEndpoint) -> None:
    endpoint.flush_cache()
    assert rt.get_server_info(endpoint)["blocks"] and endpoint.get_model_name() == "oracle"


def test_what_is_no_server_is_said_to_be_none(tmp_path: object) -> None:
    with pytest.raises(Unreachable, match="is `ramet serve` running"):
        rt.RuntimeEndpoint("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="no URL"):
        rt.RuntimeEndpoint("ftp://x")


def test_api_keys(engine: rt.Engine) -> None:
    with served(engine, api_keys=("secret",)) as address:
        with pytest.raises(rt.RametError, match="API key"):
            rt.RuntimeEndpoint(address)
        with rt.RuntimeEndpoint(address, api_key="secret") as connected:
            assert program.run("k", backend=connected)["d"]
