"""Programs on the scripted backend: text, variables, roles, forks, and what is kept and released."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest
from dsl_waiting import idle
from ramet.frontend_lang.backend import GenCall
from ramet.frontend_lang.fake import CLOSE, OPEN, FakeBackend

import ramet as rt


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend()
    yield backend
    backend.close()


def scripted(*answers: str, **options: object) -> FakeBackend:
    return FakeBackend(list(answers), **options)  # type: ignore[arg-type]


def test_text_is_the_concatenation_of_what_was_appended(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, name: str) -> None:
        s += "Hello " + name + "."
        s += rt.gen("a") + " And " + rt.gen("b", max_tokens=3)
        s += "!"

    state = program.run("Ann")
    assert state.text() == f"Hello Ann.{state['a']} And {state['b']}!"
    assert len(state["b"]) == 3
    assert [r.text for r in fake.requests] == []  # the default backend is another one


@pytest.fixture(autouse=True)
def default(fake: FakeBackend, request: pytest.FixtureRequest) -> Iterator[FakeBackend]:
    backend = FakeBackend()
    rt.set_default_backend(backend)
    yield backend
    rt.set_default_backend(None)
    backend.close()


def test_the_second_call_sends_only_new_ids(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "one"
        s += rt.gen("a", max_tokens=4)
        s += " two " + "three"
        s += rt.gen("b", max_tokens=4)

    state = program.run(backend=fake)
    state.sync()
    first, second = fake.requests
    assert first.parent is None and second.parent is not None
    assert second.parent.at == len(first.prompt) + 4
    assert second.text == f"one{state['a']} two three"


def test_a_finished_state_keeps_nothing(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "x" + rt.gen("a")
        forks = s.fork(3)
        forks += rt.gen("b")
        forks.join()
        s += rt.gen("c")

    states = [program.run(backend=fake) for _ in range(5)]
    for state in states:
        assert len(state["b"]) == 3
        state.sync()
    assert idle(fake)


def test_a_stop_inside_a_token_goes_in_front_of_the_next_text() -> None:
    fake = scripted("yes END and more", "ok")

    @rt.function
    def program(s: rt.State) -> None:
        s += "Q" + rt.gen("a", stop="END")
        s += "|" + rt.gen("b")

    state = program.run(backend=fake)
    assert state["a"] == "yes "
    assert state.text() == "Qyes |ok"
    assert fake.requests[1].text == "Qyes |"
    fake.close()


def test_roles_make_messages_and_special_tokens(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += rt.system("Be kind. <|open|>")
        with s.user():
            s += " Hi "
            s += "there "
        s += rt.assistant_begin() + rt.gen("reply") + rt.assistant_end()
        s.user("Bye")

    state = program.run(backend=fake)
    assert state.messages() == [
        {"role": "system", "content": "Be kind. <|open|>"},
        {"role": "user", "content": " Hi there "},
        {"role": "assistant", "content": state["reply"]},
        {"role": "user", "content": "Bye"},
    ]
    prompt = fake.requests[0].prompt
    assert prompt.count(OPEN) == 3 and prompt.count(CLOSE) == 2, "the user's own <|open|> is text"


def test_the_default_system_message_comes_once_and_never_before_a_system_message() -> None:
    fake = FakeBackend(default_system="DEFAULT")

    @rt.function
    def plain(s: rt.State) -> None:
        s += rt.user("a") + rt.assistant(rt.gen("x")) + rt.user("b")

    @rt.function
    def own(s: rt.State) -> None:
        s += rt.system("mine") + rt.user("a")

    assert [m["role"] for m in plain.run(backend=fake).messages()] == ["system", "user", "assistant", "user"]
    assert "DEFAULT" not in own.run(backend=fake).text()
    fake.close()


def test_roles_do_not_nest_and_close_after_an_exception(fake: FakeBackend) -> None:
    @rt.function
    def nested(s: rt.State) -> None:
        with s.user():
            s += rt.system("no")

    with pytest.raises(rt.ProgramError, match="roles do not nest"):
        nested.run(backend=fake)

    @rt.function
    def raising(s: rt.State) -> None:
        try:
            with s.user():
                s += "half"
                raise KeyError("mine")
        except KeyError:
            s += rt.assistant("went on")

    assert [m["content"] for m in raising.run(backend=fake).messages()] == ["half", "went on"]


def test_forks_are_in_order_and_see_the_parent(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> list[str]:
        s += "root" + rt.gen("a", max_tokens=2)
        forks = s.fork(3)
        forks += lambda i: f"[{i}]"
        for f in forks:
            f += rt.gen("b", max_tokens=5)
        forks += ["x", "y", "z"]
        texts = [f.text() for f in forks]
        forks.join()
        assert forks[1]["b"] == s["b"][1]
        return texts

    state = program.run(backend=fake)
    head = f"root{state['a']}"
    assert state.ret_value == [f"{head}[{i}]{state['b'][i]}{end}" for i, end in enumerate("xyz")]
    assert state.text() == head, "joining gathers variables and leaves the text alone"
    assert len(set(state["b"])) == 3


def test_join_replaces_a_variable_that_the_parent_had(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "p" + rt.gen("a")
        old = s["a"]
        forks = s.fork(3)
        forks[0] += "0" + rt.gen("a") + rt.gen("b")
        forks[2] += "2" + rt.gen("a") + rt.gen("b")
        assert forks[1]["a"] == old
        forks.join()

    state = program.run(backend=fake)
    assert len(state["a"]) == len(state["b"]) == 3
    assert state["a"][1] is None and state["b"][1] is None
    assert None not in (state["a"][0], state["b"][2])
    assert state.text().startswith("p") and "[" not in state.text()


def test_concatenate_appends_the_branches_in_order(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State, mode: str) -> None:
        s += "D:"
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += f"<{i}" + rt.gen("t", max_tokens=3 + i) + ">"
        forks.join(mode)
        s += "|" + rt.gen("end")

    for mode in ("concate_and_append", "concatenate"):
        state = program.run(mode, backend=fake)
        text = state.text()
        request = fake.requests[-1]
        assert text == request.text + state["end"]
        assert text.startswith("D:<0") and text.index("<0") < text.index("<1") < text.index("|")


def test_copy_gives_a_list_of_one(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "a"
        with s.copy() as tmp:
            tmp += "b" + rt.gen("x")
        s += "c" + rt.gen("y")

    state = program.run(backend=fake)
    assert isinstance(state["x"], list) and len(state["x"]) == 1
    assert state.text() == "ac" + state["y"]


def test_a_joined_branch_takes_nothing_more(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        forks = s.fork(2)
        forks += "x" + rt.gen("v")
        forks.join()
        assert forks[0].text().startswith("x")
        forks[0] += "more"

    with pytest.raises(rt.ProgramError, match="joined"):
        program.run(backend=fake)


def test_var_scope_holds_what_was_appended_inside(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "before "
        with s.var_scope("json"):
            s += "{" + rt.gen("inner", max_tokens=4) + "}"
        s += " after"

    state = program.run(backend=fake)
    assert state["json"] == "{" + state["inner"] + "}"


def test_n_gives_a_list_and_goes_on_with_the_first(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "q" + rt.gen("a", n=3)
        s += "!" + rt.gen("b")

    state = program.run(backend=fake)
    assert len(state["a"]) == 3
    assert state.text() == f"q{state['a'][0]}!{state['b']}"
    assert len(state.get_meta_info("a")) == 3
    assert idle(fake)


def test_dtype_values_are_text_and_typed_on_request() -> None:
    fake = scripted("42 ", "3.5\n", "True", '"hey"', '{"a": [1, 2]}')

    @rt.function
    def program(s: rt.State) -> None:
        s += "x" + rt.gen("i", dtype=int) + rt.gen("f", dtype="float") + rt.gen("b", dtype=bool)
        s += rt.gen_string("s") + rt.gen("j", schema={"type": "object"})

    state = program.run(backend=fake)
    assert [state[k] for k in "ifbs"] == ["42", "3.5", "True", '"hey"']
    assert [state.parsed(k) for k in "ifbsj"] == [42, 3.5, True, "hey", {"a": [1, 2]}]
    with pytest.raises(ValueError, match="one thing at a time"):
        rt.gen("x", dtype=int, regex="a")
    fake.close()


def test_typed_handles() -> None:
    fake = scripted("7 ", "done")
    number = rt.gen("n", dtype=int)
    unnamed = rt.gen(max_tokens=9)

    @rt.function
    def program(s: rt.State) -> int:
        s += "n=" + number + "; " + unnamed
        assert s[unnamed] == "done"
        return s[number] + 1

    assert program.run(backend=fake).result() == 8
    fake.close()


def test_gen_returns_at_once_and_in_never_waits() -> None:
    fake = FakeBackend(delay_s=0.05)

    @rt.function
    def program(s: rt.State) -> float:
        begin = time.monotonic()
        s += "x" + rt.gen("a") + rt.gen("b")
        seconds = time.monotonic() - begin
        assert "a" not in s
        assert s["a"] and "a" in s
        return seconds

    assert (program.run(backend=fake).ret_value or 1.0) < 0.04
    fake.close()


def test_a_state_as_text_is_its_text(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "a" + rt.gen("x", max_tokens=2)

    state = program.run(backend=fake)
    assert str(state) == f"ProgramState({state.text()})" and "'program': x" in repr(state)


def test_none_is_refused_at_once(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += None  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="None"):
        program.run(backend=fake)


def test_set_variables(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s["k"] = {"any": 1}
        assert "k" in s
        s.set_var("m", 2)
        forks = s.fork(2)
        forks[0]["own"] = "o"
        forks.join()

    state = program.run(backend=fake)
    assert state["k"] == {"any": 1} and state["m"] == 2 and state["own"] == ["o", None]


def test_nested_functions_run_in_parallel_on_the_same_backend() -> None:
    fake = FakeBackend(delay_s=0.02)

    @rt.function
    def inner(s: rt.State, topic: str) -> None:
        s += topic + rt.gen("tip", max_tokens=12)

    @rt.function
    def outer(s: rt.State) -> None:
        s += "start"
        parts = [inner(topic=f"t{i}") for i in range(8)]
        for part in parts:
            s += part["tip"]

    begin = time.monotonic()
    state = outer.run(backend=fake)
    assert time.monotonic() - begin < 8 * 5 * 0.02
    assert len(fake.requests) == 8 and state.text().startswith("start")
    fake.close()


def test_forks_own_no_thread(fake: FakeBackend) -> None:
    peak = 0

    @rt.function
    def program(s: rt.State) -> None:
        nonlocal peak
        s += "x"
        forks = s.fork(1000)
        forks += lambda i: f"{i}" + rt.gen("v", max_tokens=2)
        peak = threading.active_count()
        forks.join()

    before = threading.active_count()
    state = program.run(backend=fake)
    assert len(state["v"]) == 1000
    assert peak == before
    assert idle(fake)


def test_forks_that_nobody_holds_are_let_go(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "x" + rt.gen("a")
        for f in s.fork(4):
            f += rt.gen("b")
            f.sync()
        del f
        gc.collect()
        s.sync()
        time.sleep(0.05)
        assert len(fake.kept) == 1, "the parent's own"

    program.run(backend=fake).sync()
    assert idle(fake)


def test_a_finished_state_can_go_on(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "x" + rt.gen("a", max_tokens=3)

    state = program.run(backend=fake)
    text = state.text()
    state += " more" + rt.gen("b", max_tokens=3)
    assert state.text() == f"{text} more{state['b']}"
    assert idle(fake)


def test_seed_and_path_tell_forks_apart() -> None:
    calls: list[GenCall] = []

    def script(prompt: str, call: GenCall) -> str:
        calls.append(call)
        return "a"

    fake = FakeBackend(script)

    @rt.function
    def program(s: rt.State) -> None:
        s += "x" + rt.gen("a")
        for _ in range(2):
            forks = s.fork(2)
            forks += rt.gen("b")
            forks.join()

    program.run(backend=fake, seed=5).sync()
    assert {call.seed for call in calls} == {5}
    assert calls[0].path == () and len({call.path for call in calls}) == 5
    fake.close()
