"""What goes beyond the usual surface: explain, score, top, tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from dsl_waiting import idle
from ramet.frontend_lang.fake import FakeBackend

import ramet as rt


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend()
    yield backend
    backend.close()


# ---------------------------------------------------------------- explain


def test_explain_lists_every_call_of_every_branch(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "root" + rt.gen("a", max_tokens=3)
        forks = s.fork(2)
        forks += rt.gen("b", max_tokens=2)
        forks.join()
        s += rt.select("c", ["x", "y"])

    report = program.run(backend=fake).explain()
    assert sorted((call.kind, call.name, len(call.path)) for call in report.calls) == [
        ("gen", "a", 0),
        ("gen", "b", 2),
        ("gen", "b", 2),
        ("select", "c", 0),
    ]
    assert report.total.sampled == 7 and report.calls[0].diverged == "root"
    assert report.calls[0].where.file == __file__
    table = str(report)
    assert "gen b [1]" in table and "4 calls" in table and "total" in table


# ---------------------------------------------------------------- score, top


def test_score_appends_nothing_and_gives_probabilities(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> tuple[list[float], list[list[float]], str]:
        s += "q" + rt.gen("a", max_tokens=3)
        forks = s.fork(3)
        forks += lambda i: f"{i}"
        alone = rt.score(s, after="? ", choices=["yes", "no"])
        rows = rt.score(forks, after="? ", choices=["yes", "no"])
        return alone, rows, s.text()

    state = program.run(backend=fake)
    alone, rows, text = state.result()
    assert text == state.text() and len(rows) == 3
    for row in [alone, *rows]:
        assert sum(row) == pytest.approx(1.0) and all(0 < p < 1 for p in row)
    assert len({tuple(row) for row in rows}) == 3
    with pytest.raises(ValueError, match="choices"):
        rt.score(state, choices=["a", "a"])


def test_top_keeps_the_best_and_lets_the_others_go(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> int:
        s += "q"
        forks = s.fork(4)
        forks += lambda i: f"{i}" + rt.gen("v", max_tokens=2)
        best = rt.top(forks, [0.1, 0.9, 0.5, 0.9], 2)
        assert best == [forks[1], forks[3]]
        for f in forks:
            f.sync()
        assert forks[0]["v"], "losers can still be read"
        return len(fake.kept)

    assert program.run(backend=fake).result() == 2


def test_score_in_async_programs(fake: FakeBackend) -> None:
    @rt.function
    async def program(s: rt.AsyncState) -> list[float]:
        s += "q"
        forks = s.fork(2)
        rows = await rt.score(forks, choices=["a", "b"])
        assert len(rows) == 2
        return await rt.score(s, choices=["a", "b"])

    assert len(program.run(backend=fake).result()) == 2


def test_an_error_of_a_state_is_raised_by_score(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += rt.gen("a")
        rt.score(s, choices=["a", "b"])

    with pytest.raises(rt.ProgramError, match="append some text"):
        program.run(backend=fake)


# ---------------------------------------------------------------- tools


def weather(city: str, days: int = 1) -> dict[str, object]:
    """The weather of a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "days": days, "sky": "clear"}


async def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def script(*answers: str) -> FakeBackend:
    return FakeBackend(list(answers))


def test_a_model_calls_tools_and_then_answers() -> None:
    fake = script(
        "Let me see. <tool_call>",
        '{"name":"weather","arguments":{"city":"Oslo"}}',
        " <tool_call>",
        '{"name":"add","arguments":{"a":2,"b":3}}',
        "",
        "It is clear, and 5.",
    )

    @rt.function
    def agent(s: rt.State, question: str) -> None:
        s += rt.system("Help.", tools=[weather, add]) + rt.user(question)
        s += rt.assistant(rt.gen("answer", tools=[weather, add]))

    state = agent.run("How is it?", backend=fake)
    assert state["answer"] == "It is clear, and 5."
    meta = state.get_meta_info("answer")
    assert [(c.name, c.result) for c in meta["tool_calls"]] == [
        ("weather", {"city": "Oslo", "days": 1, "sky": "clear"}),
        ("add", 5),
    ]
    assert meta["rounds"] == 1
    messages = state.messages()
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "user", "assistant"]
    assert '"parameters"' in messages[0]["content"] and messages[0]["content"].startswith("Help.")
    assert messages[2]["content"] == (
        'Let me see. <tool_call>\n{"name":"weather","arguments":{"city":"Oslo"}}\n</tool_call>'
        ' <tool_call>\n{"name":"add","arguments":{"a":2,"b":3}}\n</tool_call>'
    )
    assert messages[3]["content"] == '<tool_response>\n{"city":"Oslo","days":1,"sky":"clear"}\n</tool_response>'
    assert messages[4]["content"] == "<tool_response>\n5\n</tool_response>"
    constraint = fake.requests[1].call.constraint
    assert constraint is not None and '"const": "weather"' in constraint.text
    assert "".join(state.text_iter()) == state.text() and idle(fake)
    fake.close()


def test_errors_of_tools_go_back_to_the_model_or_raise() -> None:
    def answers() -> FakeBackend:
        return script("<tool_call>", '{"name":"weather","arguments":{"city":"Atlantis"}}', "", "Sorry.")

    @rt.function
    def agent(s: rt.State, errors: str) -> None:
        s += rt.system("Help.", tools=[weather]) + rt.user("?")
        s += rt.assistant(rt.gen("answer", tools=[weather], tool_errors=errors))

    fake = answers()
    state = agent.run("return", backend=fake)
    assert state["answer"] == "Sorry."
    assert "LookupError: no such city" in state.messages()[3]["content"]
    fake.close()
    fake = answers()
    with pytest.raises(rt.ProgramError, match=r"weather\(.*Atlantis.*raised LookupError: no such city") as caught:
        agent.run("raise", backend=fake)["answer"]
    assert isinstance(caught.value.cause, rt.ToolError)
    assert isinstance(caught.value.cause.__cause__, LookupError)
    fake.close()


def test_the_number_of_rounds_is_bounded() -> None:
    call = ["<tool_call>", '{"name":"add","arguments":{"a":1,"b":1}}', ""]
    fake = script(*call * 4)

    @rt.function
    def agent(s: rt.State) -> None:
        s += rt.system(tools=[add]) + rt.user("?") + rt.assistant(rt.gen("x", tools=[add], max_rounds=2))

    with pytest.raises(rt.ProgramError, match="after max_rounds=2") as caught:
        agent.run(backend=fake)["x"]
    assert isinstance(caught.value.cause, rt.ToolRoundsExceeded)
    fake.close()


def test_a_required_call_comes_first() -> None:
    fake = script('{"name":"add","arguments":{"a":1,"b":1}}', "", "Two.")

    @rt.function
    def agent(s: rt.State) -> None:
        s += rt.system(tools=[add]) + rt.user("1+1?")
        s += rt.assistant(rt.gen("x", tools=[add], tool_choice="required"))

    assert agent.run(backend=fake)["x"] == "Two."
    fake.close()


def test_misuse_of_tools_says_what_to_do(fake: FakeBackend) -> None:
    @rt.function
    def bare(s: rt.State) -> None:
        s += rt.system(tools=[add]) + rt.gen("x", tools=[add])

    @rt.function
    def hidden(s: rt.State) -> None:
        s += rt.user("?") + rt.assistant(rt.gen("x", tools=[add]))

    with pytest.raises(rt.ProgramError, match="inside an assistant message"):
        bare.run(backend=fake)["x"]
    with pytest.raises(rt.ProgramError, match=r"'add' was not shown.*give tools= to system"):
        hidden.run(backend=fake)["x"]

    def untyped(city):  # type: ignore[no-untyped-def]
        return city

    with pytest.raises(TypeError, match="'city' needs a type"):
        rt.gen("x", tools=[untyped])
    with pytest.raises(ValueError, match="tool_choice"):
        rt.gen("x", tools=[add], tool_choice="sometimes")


# ---------------------------------------------------------------- trace page, cache


def test_the_trace_page_holds_every_call_and_escapes_text(tmp_path: Path) -> None:
    fake = FakeBackend(lambda prompt, call: "</script><b>x</b>")

    @rt.function
    def program(s: rt.State, i: int) -> None:
        s += f"{i}" + rt.gen("a")
        forks = s.fork(2)
        forks += rt.gen("b")
        forks.join()

    states = list(program.run_batch([(i,) for i in range(3)], backend=fake))
    page = tmp_path / "trace.html"
    rt.write_trace(page, states)
    html = page.read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found is not None and "http" not in re.sub(r'"where": "[^"]*"', "", html), "nothing is loaded from elsewhere"
    data = json.loads(found[1])
    assert data["title"] == "program" and len(data["calls"]) == 9
    assert data["calls"][0]["pieces"] == [["</script><b>x</b>", False]]
    assert {tuple(call["path"]) for call in data["calls"]} == {(), (0, 0), (0, 1)}
    fake.close()


def test_cache_computes_the_static_prefix(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, topic: str) -> None:
        s += rt.system("A long set of rules.") + rt.user("About: " + topic) + rt.assistant(rt.gen("x"))

    program.cache(backend=fake)
    (request,) = fake.requests
    assert request.call.max_tokens == 0 and request.text.endswith("About: ")
    state = program.run("tea", backend=fake)
    state.sync()
    assert fake.requests[1].prompt[: len(request.prompt)] == request.prompt
