"""Compiled programs: the same as live, or refused with the line that cannot be compiled."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dsl_waiting import idle
from pydantic import BaseModel
from ramet.frontend_lang.backend import GenCall
from ramet.frontend_lang.fake import FakeBackend, words

import ramet as rt


class Point(BaseModel):
    x: int


def script(prompt: str, call: GenCall) -> str:
    if call.constraint is not None and call.constraint.kind == "json_schema":
        return '{"x":3}'
    return words(prompt, call)


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend(script, default_system="Default.")
    yield backend
    backend.close()


# ---------------------------------------------------------------- programs that compile

point = rt.gen("point", schema=Point)


@rt.function
def chained(s: rt.State, topic: str, style: str = "short") -> str:
    s += f"A {style} text about {topic}: " + rt.gen("a", max_tokens=5)
    s += "\n" + s["a"] + " and " + rt.gen("b", max_tokens=4, stop="q") + rt.gen(max_tokens=2)
    return f"{topic}: {s['b']}"


@rt.function
def forked(s: rt.State, topic: str) -> dict[str, Any]:
    s += rt.system("Rules.") + rt.user(topic)
    s += rt.assistant(rt.gen("plan", max_tokens=6))
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += rt.user(f"Part {i} of {s['plan']}") + rt.assistant(rt.gen("part", max_tokens=4))
    forks.join()
    with s.copy() as trial:
        trial += rt.user("?") + rt.assistant(rt.gen("joke", max_tokens=3))
    s += rt.user("\n".join(s["part"])) + rt.assistant(rt.gen("end", max_tokens=5, n=2))
    return {"end": s["end"][1], "joke": s["joke"][0], "parts": s["part"]}


@rt.function
def tree(s: rt.State, question: str) -> list[str]:
    s += question
    leaves: list[rt.State] = [s]
    for level in range(2):
        grown: list[rt.State] = []
        for leaf in leaves:
            group = leaf.fork(2)
            group += f"[{level}]" + rt.gen("t", max_tokens=3)
            grown.extend(group)
        leaves = grown
    return [leaf["t"] for leaf in leaves]


@rt.function
def concatenated(s: rt.State, topic: str) -> None:
    s += topic
    forks = s.fork(2)
    forks += ["<a>", "<b>"]
    forks += rt.gen("x", max_tokens=3)
    forks.join("concatenate")
    with s.var_scope("tail"):
        s += "|" + rt.gen("y", max_tokens=2)


@rt.function
def tip(s: rt.State, topic: str) -> None:
    s += f"Tip about {topic}:" + rt.gen("tip", max_tokens=5, seed=1)


@rt.function
def nested(s: rt.State, topic: str) -> None:
    parts = [tip(topic=f"{topic} {i}") for i in range(3)]
    s += "All: " + ", ".join(part["tip"] for part in parts) + rt.gen("end", max_tokens=3)


@rt.function
def typed(s: rt.State, topic: str) -> tuple[Point, str]:
    s += topic + point
    return s[point], s["point"]


@rt.function
def react(s: rt.State, question: str) -> str:
    s += question + "\n"
    for i in range(1, 4):
        s += f"Thought {i}:" + rt.gen(f"thought_{i}", max_tokens=3) + "\nAction: "
        s += rt.select(f"action_{i}", ["Search", "Finish"])
        if s[f"action_{i}"] == "Search":
            s += " [" + rt.gen(f"query_{i}", max_tokens=4) + "]\n"
        else:
            s += " [" + rt.gen("answer", max_tokens=4) + "]\n"
            return f"finished: {s['answer']}"
    return "no answer"


@rt.function
def table(s: rt.State, question: str) -> str:
    s += question + rt.select("kind", ["number", "word", "other"])
    nexts = {"number": "0-9", "word": "a-z"}
    s += ": " + rt.gen("value", max_tokens=nexts.get(s["kind"], "long").count("-") + 2)
    return str(s["kind"])


PROGRAMS: list[rt.Function[Any]] = [chained, forked, tree, concatenated, nested, typed, react, table]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("through_json", [False, True])
def test_a_compiled_program_does_what_the_live_one_does(
    fake: FakeBackend, program: rt.Function[Any], through_json: bool
) -> None:
    compiled = program.compile()
    if through_json:
        compiled = rt.Compiled.from_json(compiled.to_json())
    for topic in ("tea", "rain and \ue0f0 wind"):
        live = program.run(topic, backend=fake, seed=4)
        live.sync()
        first = len(fake.requests)
        again = compiled.run(topic, backend=fake, seed=4)
        assert again.text() == live.text() and again.messages() == live.messages()
        assert again.token_ids() == live.token_ids()
        names = {name for name in live._core.declared if isinstance(name, str)}
        for name in names:
            assert again[name] == live[name]
        if not through_json or program is not typed:
            assert again.result() == live.result()
        calls = [request.call for request in fake.requests]
        assert sorted(map(repr, calls[first:])) == sorted(map(repr, calls[:first][-len(calls[first:]) :]))
    assert idle(fake)


def test_compiled_batches_need_no_thread_per_item(fake: FakeBackend) -> None:
    before = threading.active_count()
    states = list(forked.compile().run_batch([(f"t{i}",) for i in range(100)], num_threads=100, backend=fake))
    assert all(state.error() is None for state in states) and threading.active_count() <= before + 1
    assert [len(state["part"]) for state in states] == [3] * 100


def test_streams_of_compiled_programs(fake: FakeBackend) -> None:
    state = chained.compile().run("tea", backend=fake, stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert "".join(state.text_iter("b")) == state["b"]


def test_handles_of_the_program_read_compiled_states(fake: FakeBackend) -> None:
    assert typed.compile().run("a", backend=fake)[point] == Point(x=3)


def test_constants_are_computed_with(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, names: list[str], topic: str) -> None:
        for name in names:
            s += f"{name} on {topic}:" + rt.gen(name, max_tokens=2)

    compiled = program.compile(names=["ann", "bob"])
    assert compiled.graph.arguments == ("topic",) and compiled.graph.count() == 2
    state = compiled.run(topic="tea", backend=fake)
    assert state.text() == program.run(["ann", "bob"], "tea", backend=fake).text()
    with pytest.raises(TypeError, match="no parameter 'nmaes'"):
        program.compile(nmaes=[])


def test_an_error_names_the_line_of_the_program(fake: FakeBackend) -> None:
    small = FakeBackend(context=10)
    state = chained.compile().run("a" * 50, backend=small, stream=True)
    with pytest.raises(rt.ProgramError, match="variable 'a'") as caught:
        state["a"]
    assert caught.value.where.file == __file__
    with open(__file__, encoding="utf-8") as source:
        assert 'rt.gen("a", max_tokens=5)' in source.readlines()[caught.value.where.line - 1]
    small.close()


# ---------------------------------------------------------------- programs that do not


def looks(body: Callable[..., Any]) -> rt.Function[Any]:
    return rt.function(body)


def by_equality(s: rt.State, a: str) -> None:
    s += rt.user(a) + rt.assistant(rt.gen("x"))
    if s["x"] == "yes":
        s += "good"


def by_length(s: rt.State, a: str) -> None:
    s += a + rt.gen("x")
    if len(f"{s['x']}!") > 20:
        s += "long"


def by_containment(s: rt.State, a: str) -> None:
    s += a + rt.gen("x")
    if "yes" in f"<{s['x']}>":
        s += "good"


def by_regex(s: rt.State, a: str) -> None:
    s += a + rt.gen("x")
    found = re.search("[0-9]+", s["x"])
    s += found[0] if found else "none"


def by_change(s: rt.State, a: str) -> None:
    s += a + rt.gen("x")
    s += ("Again: " + s["x"])[:9]


def by_argument(s: rt.State, a: str) -> None:
    for word in a.split():
        s += word + rt.gen("x")


def by_text(s: rt.State, a: str) -> None:
    s += a + rt.gen("x")
    s += s.text()[-3:]


def by_number(s: rt.State, a: str) -> None:
    s += a + rt.gen("x", dtype=int)
    for _ in range(int(s["x"])):
        s += "!"


def by_caught(s: rt.State, a: str) -> None:
    try:
        size = len(a)
    except Exception:
        size = 0
    s += a + rt.gen("x", max_tokens=size or 1)


def by_error(s: rt.State, a: str) -> None:
    s += a
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (by_equality, "variable 'x' is looked at"),
        (by_length, "looks at the characters"),
        (by_containment, "looks at the characters"),
        (by_regex, "looks at the characters"),
        (by_change, "was changed"),
        (by_argument, r"argument 'a' is looked at .*compile\(name=value\)"),
        (by_text, r"text\(\) is read"),
        (by_number, "variable 'x' is looked at"),
        (by_caught, "argument 'a' is looked at"),
        (by_error, "ZeroDivisionError: mine"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_compiled_is_refused_with_its_line(body: Callable[..., Any], message: str) -> None:
    with pytest.raises(rt.TraceError, match=message) as caught:
        looks(body).compile()
    if caught.value.where.line:
        first = body.__code__.co_firstlineno
        assert caught.value.where.file == __file__ and first < caught.value.where.line < first + 6


def test_async_programs_and_endless_choices_are_refused() -> None:
    @rt.function
    async def program(s: rt.AsyncState) -> None:
        s += "a"

    with pytest.raises(rt.TraceError, match="async def"):
        program.compile()

    @rt.function
    def wide(s: rt.State) -> None:
        s += "a"
        for i in range(10):
            s += rt.select(f"x{i}", ["a", "b"])
            if s[f"x{i}"] == "a":
                s += "!"

    with pytest.raises(rt.TraceError, match="more than 64 ways"):
        wide.compile()
