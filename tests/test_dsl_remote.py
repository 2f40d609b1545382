"""Compiled programs at a server: tokens as they come, tools that stay with the client, single runs given up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from dsl_oracle import oracle_engine
from dsl_server import served
from dsl_waiting import idle
from ramet.frontend_lang.fake import FakeBackend

import ramet as rt


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
def story(s: rt.State, topic: str, length: int = 200) -> str:
    s += f"About {topic}:" + rt.gen("first", max_tokens=60, temperature=0, ignore_eos=True)
    s += "\nAnd then:" + rt.gen("second", max_tokens=60, temperature=0, ignore_eos=True)
    return f"{s['first']}{s['second']}"


# ---------------------------------------------------------------- streams


def test_tokens_arrive_while_they_are_generated(endpoint: rt.RuntimeEndpoint) -> None:
    compiled = story.compile()
    state = compiled.run("tea", backend=endpoint, stream=True)
    parts = list(state.text_iter("first"))
    assert len(parts) > 5 and "".join(parts) == state["first"]
    assert "".join(state.text_iter()) == state.text() == story.run("tea", backend=endpoint).text()

    async def with_meta() -> list[tuple[str, Any]]:
        again = compiled.run("tea", backend=endpoint, stream=True)
        return [pair async for pair in again.text_async_iter("second", return_meta_data=True)]

    pairs = asyncio.run(with_meta())
    assert len(pairs) > 5 and "".join(text for text, _ in pairs) == state["second"]


def test_lines_of_json_for_other_clients(url: str) -> None:
    body = {"graph": json.loads(story.compile().to_json()), "items": [{"topic": "tea"}, {"topic": "ice"}]}
    for stream in (False, True):
        with httpx.stream("POST", f"{url}/v1/programs", json={**body, "stream": stream}, timeout=60) as reply:
            lines = [json.loads(line) for line in reply.iter_lines()]
        assert lines[0]["run"] and reply.headers["content-type"] == "application/x-ndjson"
        for item in (0, 1):
            mine = [line for line in lines if line.get("item") == item]
            assert mine[-1]["result"]["returned"] == "".join(mine[-1]["result"]["variables"].values())
            values = {line["name"]: line["value"] for line in mine if "value" in line}
            assert values == mine[-1]["result"]["variables"] and list(values) == ["first", "second"]
            texts = [line["text"] for line in mine if line.get("name") == "first" and "text" in line]
            assert (len(texts) > 5 and "".join(texts) == values["first"]) if stream else not texts
    bad = httpx.post(f"{url}/v1/programs", json={**body, "answer": "poetry"})
    assert bad.status_code == 400 and "variables" in bad.json()["error"]["message"]
    lost = httpx.post(f"{url}/v1/programs/nothing", json={"item": 0, "cancel": True})
    assert lost.status_code == 404 and lost.json()["error"]["code"] == "run_not_found"


# ---------------------------------------------------------------- giving up


@rt.function
def endless(s: rt.State, topic: str) -> None:
    s += topic + rt.gen("x", max_tokens=3500, ignore_eos=True)


def quiet(engine: rt.Engine) -> bool:
    end = time.monotonic() + 5
    while engine.backend.client.open_requests and time.monotonic() < end:
        time.sleep(0.02)
    return engine.backend.client.open_requests == 0


def test_one_run_of_a_bundle_is_given_up(engine: rt.Engine, endpoint: rt.RuntimeEndpoint) -> None:
    compiled = endless.compile()
    states = [compiled.run(f"t{i}", backend=endpoint, stream=True) for i in range(3)]
    for state in states:
        next(state.text_iter("x"))
    states[1].cancel()
    with pytest.raises(rt.ProgramCancelled, match=r"cancel\(\) was called"):
        states[1]["x"]
    end = time.monotonic() + 5
    while engine.backend.client.open_requests > 2 and time.monotonic() < end:
        time.sleep(0.02)
    assert engine.backend.client.open_requests == 2
    states[0].cancel()
    states[2].cancel()
    assert quiet(engine)


def test_a_time_limit_of_a_call(engine: rt.Engine, endpoint: rt.RuntimeEndpoint) -> None:
    @rt.function
    def slow(s: rt.State, topic: str) -> None:
        s += topic + rt.gen("x", max_tokens=3500, ignore_eos=True, timeout_s=0.3)

    for compile in (True, False):
        (state,) = slow.run_batch([("a",)], backend=endpoint, compile=compile)
        with pytest.raises(rt.ProgramError, match=r"variable 'x'.*0\.3") as caught:
            state["x"]
        assert "imeout" in type(caught.value.cause).__name__
    assert quiet(engine)


def test_a_body_that_fails_stops_what_it_has_begun(engine: rt.Engine, endpoint: rt.RuntimeEndpoint) -> None:
    @rt.function
    def program(s: rt.State, topic: str) -> str:
        s += topic
        forks = s.fork(2)
        forks += [rt.gen("x", max_tokens=3500, ignore_eos=True), "b" * 5000 + rt.gen("x")]
        return str(forks[1]["x"])

    (state,) = program.run_batch([("a",)], backend=endpoint, compile=True)
    with pytest.raises(rt.ProgramError, match="4096"):
        state.result()
    assert quiet(engine)


# ---------------------------------------------------------------- tools


def weather(city: str, days: int = 1) -> dict[str, Any]:
    """The weather of a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "sky": "clear"}


@rt.function
def helped(s: rt.State, question: str) -> str:
    s += rt.system("Help.", tools=[weather]) + rt.user(question)
    s += rt.assistant(rt.gen("answer", tools=[weather], tool_choice="required", max_tokens=12, temperature=0))
    return str(s["answer"])


ANSWERS = ['{"name":"weather","arguments":{"city":"Oslo"}}', " and", "Clear."]


def test_tools_are_compiled() -> None:
    compiled = helped.compile()
    again = rt.Compiled.from_json(compiled.to_json(), tools=[weather])
    states = []
    for program in (helped, compiled, again):
        fake = FakeBackend(list(ANSWERS))
        states.append(program.run("How is Oslo?", backend=fake))
        assert states[-1].text().count("tool_response") == 2
        assert idle(fake)
        fake.close()
    assert states[0].text() == states[1].text() == states[2].text()
    calls = [state.get_meta_info("answer")["tool_calls"] for state in states]
    assert calls[0] == calls[1] == calls[2] and calls[0][0].result == {"city": "Oslo", "sky": "clear"}


def test_a_program_from_json_needs_the_functions_behind_its_tools() -> None:
    fake = FakeBackend(list(ANSWERS))
    lonely = rt.Compiled.from_json(helped.compile().to_json())
    assert "no function here" in lonely.run("How is Oslo?", backend=fake).text()
    fake.close()


@pytest.mark.slow
def test_a_server_sends_calls_of_tools_back() -> None:
    @rt.function
    def strict(s: rt.State, question: str) -> None:
        s += rt.system("Help.", tools=[broken]) + rt.user(question)
        s += rt.assistant(rt.gen("a", tools=[broken], tool_choice="required", tool_errors="raise", max_tokens=8))
        s += rt.user("?") + rt.assistant(rt.gen("b", max_tokens=4))

    def broken(city: str) -> str:
        """Says nothing."""
        raise ZeroDivisionError(city[:1])

    with rt.Engine(progress=False, kv_tokens=8192, context=1024) as real, served(real) as address:  # noqa: SIM117
        with rt.RuntimeEndpoint(address) as there:
            items = [("How is the weather in Oslo?",), ("Is it raining in Rome today?",)]
            ways = [
                list(helped.run_batch(items, backend=backend, compile=compile))
                for backend in (real, there)
                for compile in (False, True)
            ]
            for way in ways:
                assert [state.error() for state in way] == [None, None]
                assert [state.token_ids() for state in way] == [state.token_ids() for state in ways[0]]
                assert [state.messages() for state in way] == [state.messages() for state in ways[0]]
                calls = [state.get_meta_info("answer")["tool_calls"] for state in way]
                assert [call.name for call in calls[0]].count("weather") == len(calls[0]) > 0
            for compile in (False, True):
                (failed,) = strict.run_batch([("How is Oslo?",)], backend=there, compile=compile)
                for name in "ab":
                    with pytest.raises(rt.ProgramError, match=r"tool broken.* raised ZeroDivisionError") as caught:
                        failed[name]
                    assert isinstance(caught.value.cause, rt.ToolError) and caught.value.where.line > 0
            assert quiet(real)
