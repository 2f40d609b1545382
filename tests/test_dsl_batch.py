"""Batches run by the program's graph where nobody can tell, and live otherwise."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dsl_oracle import oracle_engine
from dsl_server import served
from pydantic import BaseModel
from ramet.frontend_lang.fake import FakeBackend
from ramet.frontend_lang.purity import acts
from test_dsl_compile import PROGRAMS

import ramet as rt


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rt.Engine]:
    with oracle_engine(tmp_path_factory.mktemp("model")) as running:
        yield running


@pytest.fixture(scope="module")
def endpoint(engine: rt.Engine) -> Iterator[rt.RuntimeEndpoint]:
    with served(engine) as address, rt.RuntimeEndpoint(address) as connected:
        yield connected


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend()
    yield backend
    backend.close()


# ---------------------------------------------------------------- the same either way


@rt.function
def many_ways(s: rt.State, topic: str, count: int = 2, style: str = "short") -> dict[str, Any]:
    s["style"] = style
    s += rt.system("Rules.") + rt.user(f"{topic} ({count:d})" if style == "exact" else topic)
    s += rt.assistant(rt.gen("plan", max_tokens=8, stop=" w3"))
    forks = s.fork(count)
    for i, f in enumerate(forks):
        f += rt.user(f"{i}: {s['plan']}") + rt.assistant(rt.gen("part", max_tokens=5))
    forks.join()
    s["first"] = s["part"][0]
    s += rt.user("?") + rt.assistant(rt.select("kind", ["one", "two", "onetwo"]))
    if s["kind"] == "one":
        s += rt.user("more") + rt.assistant(rt.gen("end", max_tokens=4, n=2))
    else:
        s += rt.user("less") + rt.assistant(rt.gen("end", max_tokens=4, return_logprob=True, top_logprobs_num=2))
    return {"parts": s["part"], "kind": s["kind"], "topic": topic}


def bad_regex(s: rt.State, topic: str) -> str:
    s += f"{topic}: " + rt.gen("a", max_tokens=3) + rt.gen("x", regex="\\p{Nope}") + rt.gen("y")
    return str(s["x"])


def late_error(s: rt.State, topic: str) -> None:
    s += topic + rt.gen("a", max_tokens=3)
    forks = s.fork(2)
    forks += ["short", "b" * 5000]
    forks += rt.gen("b", max_tokens=3)
    forks.join()
    s += "after" + rt.gen("c", max_tokens=3)


def values(state: rt.State[Any]) -> dict[str, Any]:
    """All that can be read of a state, errors by type, text and place."""

    def attempt(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Exception as error:
            cause = getattr(error, "cause", None)
            place = (getattr(error, "variable", None), getattr(error, "where", None), getattr(error, "code", None))
            return (type(error), str(error), type(cause), *place)

    def meta(name: str) -> Any:
        found = attempt(lambda: state.get_meta_info(name))
        for one in found if isinstance(found, list) else [found]:
            for key in ("seconds", "cached_tokens", "computed_tokens"):
                if isinstance(one, dict):
                    one.pop(key, None)
        return found

    names = sorted(name for name in state._core.declared if isinstance(name, str))
    return {
        "names": names,
        "variables": [attempt(lambda name=name: state[name]) for name in names],
        "metas": [meta(name) for name in names],
        "result": attempt(state.result),
        "text": attempt(state.text),
        "messages": attempt(state.messages),
        "ids": attempt(state.token_ids),
        "error": attempt(lambda: (_ for _ in ()).throw(error) if (error := state.error()) is not None else None),
    }


ITEMS: list[Any] = [
    ("tea",),
    {"topic": "rain", "count": 3},
    {"topic": "a" * 5000},
    {"topic": "snow", "style": "exact"},
    {"tpoic": "x"},
    {"topic": "", "count": 1},
    {"topic": 5},
    ("ice", 2, "exact"),
]


@pytest.mark.parametrize("body", [many_ways.body, bad_regex, late_error], ids=lambda body: body.__name__)
def test_results_and_errors_are_the_same_either_way(
    engine: rt.Engine, endpoint: rt.RuntimeEndpoint, body: Callable[..., Any]
) -> None:
    program = rt.function(body)
    items = ITEMS if program.name == "many_ways" else [("tea",), ("rain",)]
    for backend in (engine, endpoint):
        live = program.run_batch(items, backend=backend, seed=5, compile=False)
        mixed = program.run_batch(items, backend=backend, seed=5)
        assert [values(state) for state in mixed] == [values(state) for state in live]
    shapes = program.shapes._known.values()
    assert any(isinstance(shape, rt.Compiled) for shape in shapes), "some items were not run live"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_server_runs_what_the_engine_runs(
    engine: rt.Engine, endpoint: rt.RuntimeEndpoint, program: rt.Function[Any]
) -> None:
    items = [("tea",), ("rain and \ue0f0 wind",)]
    live = list(program.run_batch(items, backend=engine, seed=5, compile=False))
    for backend in (engine, endpoint):
        compiled = list(program.run_batch(items, backend=backend, seed=5, compile=True))
        assert [values(state) for state in compiled] == [values(state) for state in live]
        assert [len(state.explain().calls) for state in compiled] == [len(state.explain().calls) for state in live]


def test_one_request_for_a_whole_batch(endpoint: rt.RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    request = endpoint.backend.http.request

    def counted(method: str, path: str, body: bytes | None = None) -> Any:
        sent.append(path)
        return request(method, path, body)

    monkeypatch.setattr(endpoint.backend.http, "request", counted)
    states = list(many_ways.run_batch([(f"t{i}",) for i in range(40)], backend=endpoint))
    assert all(state.error() is None for state in states)
    assert set(sent) == {"/v1/programs"} and len(sent) <= 4


# ---------------------------------------------------------------- which way

tally: list[str] = []


def counts_lines(s: rt.State, topic: str) -> None:
    tally.append(topic)
    s += topic + rt.gen("a", max_tokens=3)


def prints(s: rt.State, topic: str) -> None:
    print("x")
    s += topic + rt.gen("a", max_tokens=3)


def draws(s: rt.State, topic: str) -> None:
    s += topic + random.choice(["a", "b"]) + rt.gen("a", max_tokens=3)


def opens(s: rt.State, topic: str) -> None:
    s += topic + open(topic).read() + rt.gen("a", max_tokens=3)  # noqa: SIM115


def flushes(s: rt.State, topic: str) -> None:
    s += topic + rt.gen("a", max_tokens=3)
    rt.flush_cache()


def helper(topic: str) -> str:
    tally.append(topic)
    return topic


def by_helper(s: rt.State, topic: str) -> None:
    s += helper(topic) + rt.gen("a", max_tokens=3)


def inner(s: rt.State, topic: str) -> None:
    print(topic)
    s += topic


nested = rt.function(inner)


def by_program(s: rt.State, topic: str) -> None:
    s += nested(topic).text()


def imports(s: rt.State, topic: str) -> None:
    import os

    s += os.getcwd() + topic


@pytest.mark.parametrize("body", [counts_lines, prints, draws, opens, flushes, by_helper, by_program, imports])
def test_a_body_that_may_act_outside_is_not_run_early(body: Callable[..., Any], caplog: Any, fake: FakeBackend) -> None:
    found = acts(body)
    assert found is not None and f"{__file__}:" in str(found)
    if body in (counts_lines, by_helper):
        before = len(tally)
        with caplog.at_level(logging.INFO, logger="ramet.programs"):
            list(rt.function(body).run_batch([("a",), ("b",)], backend=fake))
        assert len(tally) == before + 2, "once for each item"
        assert "tally.append()" in caplog.text and f"{__file__}:" in caplog.text


def by_text(s: rt.State, topic: str) -> None:
    s += topic + rt.gen("a")
    s += s.text()


class Person(BaseModel):
    name: str


EXAMPLES = ["one", "two"]


def harmless(s: rt.State, topic: str, count: int) -> Person:
    person = rt.gen("p", schema=Person)
    numbers = {"a": 1}
    for example in EXAMPLES[:count]:
        s += f"{example} {re.escape('.')} {numbers.get('a')}" + "".join(sorted("ba"))
    s += topic + person
    return s[person]


def test_bodies_that_only_write_a_program_are_seen_as_such() -> None:
    for program in (harmless, many_ways.body, bad_regex, late_error, *(program.body for program in PROGRAMS)):
        assert acts(program) is None, program


def test_arguments_that_the_body_computes_with_become_constants(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, topic: str, names: list[str], count: int, hint: str | None = None) -> None:
        for name in names:
            s += f"{name} on {topic} in {count} words:" + rt.gen(name, max_tokens=2)
        if hint is not None:
            s += hint

    items = [("tea", ["ann", "bob"], 3), ("ice", ["ann"], 4, "now"), ("sun", ["ann", "bob"], 5), ("x", {"ann": 1}, 2.5)]
    live = [values(state) for state in program.run_batch(items, backend=fake, compile=False)]
    assert [values(state) for state in program.run_batch(items, backend=fake)] == live
    compiled = [shape for shape in program.shapes._known.values() if isinstance(shape, rt.Compiled)]
    assert len(compiled) == 3, "the first and third item share one"


def test_bound_arguments_and_their_overrides(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, topic: str, examples: list[str], end: str = "!") -> None:
        s += "".join(examples) + topic + end + rt.gen("x", max_tokens=2)
        examples.append("changed")

    bound = program.bind(examples=["a", "b"], end="?")
    items: list[dict[str, Any]] = [{"topic": "t"}, {"topic": "u", "end": "."}, {"topic": "v", "examples": ["c"]}]
    states = [state.text()[:5] for state in bound.run_batch(items, backend=fake, compile=True)]
    assert states == ["abt?" + states[0][4:], "abu." + states[1][4:], "cv?" + states[2][3:]]


def test_forbidding_and_forcing(fake: FakeBackend) -> None:
    assert [state.error() for state in many_ways.run_batch([("a",)], backend=fake, compile=False)] == [None]
    assert not rt.function(many_ways.body).shapes._known
    with pytest.raises(rt.TraceError, match=r"text\(\) is read"):
        rt.function(by_text).run_batch([("a",)], backend=fake, compile=True)

    @rt.function
    async def asynchronous(s: rt.AsyncState, topic: str) -> None:
        s += topic

    with pytest.raises(rt.TraceError, match="async def"):
        asynchronous.run_batch([("a",)], backend=fake, compile=True)

    @rt.function
    def takes_it(s: rt.State, compile: str) -> None:
        s += compile

    assert [state.text() for state in takes_it.run_batch([("x",)], backend=fake)] == ["x"]
