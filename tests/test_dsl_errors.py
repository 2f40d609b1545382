"""What a user sees when something goes wrong: type, message, and the line of the program."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import pytest
from dsl_waiting import idle
from ramet.frontend_lang.backend import GenCall
from ramet.frontend_lang.fake import FakeBackend

import ramet as rt

HERE = __file__


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend(context=200)
    yield backend
    backend.close()


def line_of(text: str) -> int:
    """Line number in this file of the one line that ends with ``# text``."""
    with open(HERE, encoding="utf-8") as source:
        return next(i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {text}"))


@rt.function
def too_long(s: rt.State, text: str) -> None:
    s += text
    s += rt.gen("x", max_tokens=5)  # the failing call
    s += " and " + rt.gen("y")


def test_the_error_names_program_variable_and_line(fake: FakeBackend) -> None:
    state = too_long.run("a" * 300, backend=fake)
    with pytest.raises(rt.ProgramError) as caught:
        state["x"]
    error = caught.value
    assert (error.program, error.variable) == ("too_long", "x")
    assert error.where.file == HERE and error.where.line == line_of("the failing call")
    assert f"{HERE}:{error.where.line}" in str(error) and "300 tokens" in str(error)
    assert isinstance(error.cause, rt.InvalidRequest) and error.code == "context_length_exceeded"
    assert error.text == "a" * 300


def test_later_calls_say_which_call_failed_first(fake: FakeBackend) -> None:
    state = too_long.run("a" * 300, backend=fake)
    with pytest.raises(rt.ProgramError, match=r"'y'.*was not run.*'x'"):
        state["y"]
    for read in (state.text, state.messages, state.sync):
        with pytest.raises(rt.ProgramError, match="300 tokens"):
            read()
    assert isinstance(state.error(), rt.ProgramError)
    assert idle(fake) and len(fake.requests) == 0


def test_values_from_before_the_error_can_be_read(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "ok" + rt.gen("good", max_tokens=3)
        s += "a" * 300 + rt.gen("bad")

    state = program.run(backend=fake)
    assert len(state["good"]) == 3
    assert state.error() is not None and idle(fake)


def test_an_unknown_variable_names_the_known_ones(fake: FakeBackend) -> None:
    state = too_long.run("a", backend=fake)
    with pytest.raises(KeyError, match=r"'z'.*'x', 'y'"):
        state["z"]
    with pytest.raises(rt.UnknownVariable):
        state.get_meta_info("z")


def test_an_unknown_variable_raises_in_the_body_at_once(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "a"
        s["nothing"]

    with pytest.raises(rt.UnknownVariable, match="nothing"):
        program.run(backend=fake)
    state = program.run(backend=fake, stream=True)
    assert isinstance(state.error(), rt.UnknownVariable)


def test_an_exception_in_the_body_comes_out_and_cancels_the_rest() -> None:
    fake = FakeBackend(delay_s=0.05)
    seen: list[rt.State] = []

    @rt.function
    def program(s: rt.State) -> None:
        s += "a"
        forks = s.fork(3)
        forks += rt.gen("slow")
        seen.extend(forks)
        time.sleep(0.02)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run(backend=fake)
    with pytest.raises(rt.ProgramCancelled, match="its body raised ZeroDivisionError"):
        seen[0]["slow"]
    assert idle(fake), (fake.kept.keys(), fake.running)
    assert all(request.cancelled for request in fake.requests)
    fake.close()


def test_an_error_in_a_branch_is_the_states_error_and_raises_where_it_is_read(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> list[object]:
        s += "a"
        forks = s.fork(3)
        for i, f in enumerate(forks):
            f += "b" * (300 if i == 1 else 1) + rt.gen("v", max_tokens=2)
        values = forks.gather("v", errors="return")
        forks.join()
        return values

    state = program.run(backend=fake)
    values = state.ret_value or []
    assert isinstance(values[1], rt.ProgramError) and isinstance(values[0], str) and isinstance(values[2], str)
    with pytest.raises(rt.ProgramError, match="tokens"):
        state["v"]
    assert isinstance(state.error(), rt.ProgramError)


def test_fork_before_text_and_gen_before_text(fake: FakeBackend) -> None:
    @rt.function
    def forked(s: rt.State) -> None:
        forks = s.fork(2)
        forks += ["a", "b"]
        forks += rt.gen("v")
        forks.join()

    assert len(forked.run(backend=fake)["v"]) == 2

    @rt.function
    def empty(s: rt.State) -> None:
        s += rt.gen("v")

    with pytest.raises(rt.ProgramError, match="append some text before the first gen"):
        empty.run(backend=fake)["v"]


def test_a_bad_regex_raises_at_the_line_of_the_gen(fake: FakeBackend) -> None:
    with pytest.raises(rt.InvalidConstraint, match=r"\(a.*does not parse"):
        rt.gen("x", regex="(a")
    with pytest.raises(rt.InvalidConstraint, match="not JSON"):
        rt.gen("x", schema="{nope")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rt.gen("x", temperature=-1), "temperature must be between"),
        (lambda: rt.gen("x", max_tokens=1.5), "whole number"),
        (lambda: rt.gen("x", stop=""), "non-empty"),
        (lambda: rt.gen("x", n=0), "n must be between"),
        (lambda: rt.gen("x", stop_regex="("), "stop_regex"),
        (lambda: rt.gen("x", dtype=dict), "dtype must be"),
        (lambda: rt.gen("x", choices=[]), "empty"),
        (lambda: rt.select("x", []), "empty"),
        (lambda: rt.select("x"), "needs choices"),
        (lambda: rt.select("x", ["a", "a"]), "'a' is there more than once"),
        (lambda: rt.select("x", "abc"), "list of strings"),
        (lambda: rt.select("x", ["a", "b"], temperature=0.5), "temperature must be 0"),
        (lambda: rt.select("x", ["a"], choices_method="best"), "choices_method must be one of"),
    ],
)
def test_bad_values_are_refused_where_they_are_written(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_things_that_cannot_be_appended(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, what: Any) -> None:
        s += what

    with pytest.raises(ValueError, match="cannot append None"):
        program.run(None, backend=fake)
    with pytest.raises(TypeError, match=r"append str\(5\)"):
        program.run(5, backend=fake)
    with pytest.raises(NotImplementedError, match="read text only"):
        rt.image("a.png")


def test_wrong_arguments_and_options(fake: FakeBackend) -> None:
    with pytest.raises(TypeError, match=r"too_long\(\).*'txet'.*its parameters: text"):
        too_long.run(txet="a", backend=fake)
    with pytest.raises(TypeError, match="missing"):
        too_long.run(backend=fake)
    with pytest.raises(TypeError, match="no parameter 'nope' to bind"):
        too_long.bind(nope=1)
    with pytest.raises(ValueError, match="temperature"):
        too_long.run("a", temperature="hot", backend=fake) if False else too_long.run("a", temperature=-2, backend=fake)
    with pytest.raises(TypeError, match="is no program"):
        rt.function(lambda: None)
    with pytest.raises(TypeError, match="not a backend"):
        rt.set_default_backend("http://localhost")


def test_a_parameter_wins_its_name_over_an_option() -> None:
    calls: list[GenCall] = []

    def script(prompt: str, call: GenCall) -> str:
        calls.append(call)
        return "x"

    fake = FakeBackend(script)

    @rt.function
    def program(s: rt.State, n: int, stop: str, temperature: str) -> None:
        s += f"{n} {stop} {temperature}" + rt.gen("a")

    state = program.run(n=3, stop="halt", temperature="hot", sampling={"temperature": 0.25}, backend=fake)
    assert state.text().startswith("3 halt hot")
    assert (calls[0].n, calls[0].stop, calls[0].temperature) == (1, (), 0.25)
    fake.close()


def test_options_of_a_gen_beat_those_of_the_run_and_defaults_are_documented() -> None:
    calls: list[GenCall] = []

    def script(prompt: str, call: GenCall) -> str:
        calls.append(call)
        return "x" if call.constraint is None else "{}"

    fake = FakeBackend(script)

    @rt.function
    def program(s: rt.State) -> None:
        s += "p" + rt.gen("a") + rt.gen("b", max_tokens=5, stop="S", temperature=0.0) + rt.gen("c", schema={})

    program.run(backend=fake).sync()
    a, b, c = calls
    assert (a.max_tokens, a.temperature, a.top_p, a.top_k) == (128, 1.0, 1.0, -1)
    assert (b.max_tokens, b.stop, b.temperature, c.max_tokens) == (5, ("S",), 0.0, None)
    calls.clear()
    program.run(backend=fake, max_new_tokens=7, stop=["R"], top_p=0.5).sync()
    a, b, c = calls
    assert (a.max_tokens, a.stop, a.top_p) == (7, ("R",), 0.5)
    assert (b.max_tokens, b.stop, b.top_p, c.max_tokens) == (5, ("S",), 0.5, 7)
    fake.close()


def test_bind_arguments_of_the_call_win_and_dicts_stay_as_they_were(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, a: str, b: str = "B", c: str = "C") -> None:
        s += f"{a}{b}{c}"

    bound = program.bind(b="bound", a="first")
    item = {"b": "item"}
    assert bound.run(backend=fake).text() == "firstboundC"
    assert bound.run("x", backend=fake).text() == "xboundC"
    assert [state.text() for state in bound.run_batch([item, ("y",)], backend=fake)] == ["firstitemC", "yboundC"]
    assert item == {"b": "item"} and bound.bound == {"b": "bound", "a": "first"}


# ---------------------------------------------------------------- run_batch


@pytest.mark.parametrize("generator", [False, True])
def test_one_failing_item_does_not_harm_the_rest(fake: FakeBackend, generator: bool) -> None:
    items = [{"text": "a" * (300 if i == 6 else i + 1)} for i in range(10)]
    err = io.StringIO()
    with redirect_stderr(err):
        states = list(
            too_long.run_batch(items, num_threads=4, progress_bar=True, generator_style=generator, backend=fake)
        )
    assert "10/10" in err.getvalue()
    for i, state in enumerate(states):
        if i == 6:
            assert isinstance(state.error(), rt.ProgramError)
            with pytest.raises(rt.ProgramError, match="300 tokens"):
                state["x"]
        else:
            assert state.error() is None and state.text().startswith("a" * (i + 1))
    assert idle(fake)


def test_batch_items_of_every_kind(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, a: str, b: str = "-") -> str:
        s += a + b
        if a == "bad":
            raise KeyError("boom")
        return a

    assert program.run_batch([], backend=fake) == []
    states = list(
        program.run_batch(iter([("x",), ("y", "z"), {"a": "w"}, "v", ("bad",), ("1", "2", "3")]), backend=fake)
    )
    assert [s.ret_value for s in states] == ["x", "y", "w", "v", None, None]
    assert isinstance(states[4].error(), KeyError) and isinstance(states[5].error(), TypeError)
    with pytest.raises(KeyError, match="boom"):
        states[4].result()
    with pytest.raises(ValueError, match="num_threads"):
        program.run_batch([("x",)], num_threads=0)


def test_num_threads_bounds_the_bodies_in_flight(fake: FakeBackend) -> None:
    now, peak = 0, 0

    @rt.function
    def program(s: rt.State, i: int) -> None:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        time.sleep(0.01)
        now -= 1

    list(program.run_batch([(i,) for i in range(20)], num_threads=3, backend=fake))
    assert 1 < peak <= 3


def test_a_generator_batch_holds_a_window_and_stops_when_it_is_dropped(fake: FakeBackend) -> None:
    started: list[int] = []

    @rt.function
    def program(s: rt.State, i: int) -> None:
        started.append(i)
        s += f"{i}" + rt.gen("v", max_tokens=2)

    states = iter(program.run_batch(((i,) for i in range(1000)), num_threads=2, generator_style=True, backend=fake))
    first = next(states)
    assert first.text().startswith("0")
    del states
    assert len(started) < 20 and idle(fake)


def test_sleeping_bodies_run_side_by_side(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, i: int) -> None:
        time.sleep(0.2)

    begin = time.monotonic()
    list(program.run_batch([(i,) for i in range(64)], num_threads=64, backend=fake))
    assert time.monotonic() - begin < 0.2 * 5


def test_a_program_without_a_backend_says_what_to_do() -> None:
    from ramet.frontend_lang import defaults

    rt.set_default_backend(None)
    factory = defaults._factory
    defaults.set_default_factory(None)
    try:
        with pytest.raises(rt.NoBackend, match=r"set_default_backend\(ramet.Engine\(\)\)"):
            too_long.run("a")
    finally:
        defaults.set_default_factory(factory)


def test_a_backend_that_was_shut_down_fails_what_was_open() -> None:
    fake = FakeBackend(delay_s=0.2)

    @rt.function
    def program(s: rt.State) -> None:
        s += "a" + rt.gen("v")

    state = program.run(backend=fake)
    fake.close()
    with pytest.raises(rt.ProgramCancelled, match="shut down"):
        state["v"]


def test_timeouts_are_errors_of_their_call() -> None:
    fake = FakeBackend(delay_s=0.2)

    @rt.function
    def program(s: rt.State) -> None:
        s += "a" + rt.gen("v", timeout_s=0.05)

    with pytest.raises(rt.ProgramError, match=r"timeout_s=0\.05"):
        program.run(backend=fake)["v"]
    assert fake.requests[0].cancelled
    fake.close()


@pytest.mark.parametrize("n", [1, 2])
def test_a_typed_value_that_was_cut_says_so_and_how_to_bound_it(n: int) -> None:
    backend = FakeBackend(lambda prompt, call: '{"name": "' + "a" * 300, context=200)
    value = rt.gen("value", schema={"type": "object", "properties": {"name": {"type": "string"}}}, max_tokens=20, n=n)

    @rt.function
    def program(s: rt.State) -> None:
        s += "As JSON: " + value

    state = program.run(backend=backend)
    with pytest.raises(rt.ProgramError, match=r"'value'.*cut after 20 tokens.*max_length") as caught:
        state.parsed("value")
    assert isinstance(caught.value.cause, ValueError) and caught.value.where.file == HERE
    assert state["value"] if n == 1 else all(state["value"])
    backend.close()


def test_result_raises_the_error_of_a_call_that_nobody_read() -> None:
    small = FakeBackend(context=10)

    @rt.function
    def silent(s: rt.State) -> None:
        s += "a" * 50 + rt.gen("x")

    @rt.function
    def handled(s: rt.State) -> str:
        s += "a" * 50 + rt.gen("x")
        try:
            return str(s["x"])
        except rt.ProgramError:
            return "nothing"

    for compile in (False, True):
        (state,) = silent.run_batch([()], backend=small, compile=compile)
        with pytest.raises(rt.ProgramError, match="variable 'x'") as caught:
            state.result()
        assert caught.value.code == "context_length_exceeded"
    assert handled.run(backend=small).result() == "nothing"
    small.close()


# ---------------------------------------------------------------- readers that go, time, refusals


class Slow(FakeBackend):
    """Scores slowly, or refuses ``refusals`` times first."""

    refusals = 0

    async def score(self, *args: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise rt.Overloaded("full")
        await asyncio.sleep(0.05)
        return await super().score(*args)


def test_a_reader_that_went_away_harms_nobody() -> None:
    backend = Slow()

    @rt.function
    async def program(s: rt.State) -> str:
        s += "hello"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(rt.score(s, choices=["a", "b"]), 0.01)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(rt.score(s, choices=["a" * 300_000, "b"]), 0.01)
        s += rt.gen("x", max_tokens=4)
        return str(await s["x"])

    state = program.run(backend=backend)
    assert len(state["x"]) == 4 and state.error() is None
    backend.close()


def test_time_that_is_over_is_an_error_of_ours() -> None:
    backend = Slow(delay_s=0.2)

    @rt.function
    def program(s: rt.State, choose: bool) -> None:
        s += "a" + (rt.select("v", ["x", "y"]) if choose else rt.gen("v"))

    for choose in (False, True):
        error = program.run(choose, backend=backend, timeout_s=0.01).error()
        assert error is not None and isinstance(error.cause, rt.RequestTimeout) and error.code == "timeout"
    backend.close()


def test_a_select_is_tried_again() -> None:
    backend = Slow()

    @rt.function
    def program(s: rt.State) -> None:
        s += "a" + rt.select("v", ["x", "y"])

    for refusals, retries in ((1, 1), (2, 1)):
        backend.refusals = refusals
        error = program.run(backend=backend, retries=retries).error()
        assert (error is None) == (refusals <= retries)
    backend.close()


def test_every_error_of_the_protocol_has_a_public_name() -> None:
    from ramet.runtime.protocol import errors

    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, rt.RametError):
            assert getattr(rt, name) is kind


def test_options_have_the_limits_of_the_protocol() -> None:
    from ramet.frontend_lang.options import NAMES
    from ramet.runtime.protocol.limits import RANGES

    for name, allowed in RANGES.items():
        option = "top_logprobs_num" if name == "logprobs" else name
        assert option in NAMES
        for value in (allowed.low - 1, allowed.high + 1):
            with pytest.raises(ValueError, match=option):
                rt.gen("x", **{option: value})
        rt.gen("x", **{option: allowed.high})
