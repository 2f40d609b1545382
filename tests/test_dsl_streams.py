"""Streams of programs: everything arrives once, in order, for every reader, and ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from dsl_waiting import idle
from ramet.frontend_lang.fake import FakeBackend

import ramet as rt


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend(delay_s=0.002)
    yield backend
    backend.close()


@rt.function
def story(s: rt.State) -> str:
    s += "Once " + rt.gen("a") + rt.user("and") + rt.gen("b")
    return s["b"]


def test_text_iter_includes_prompt_and_template_text(fake: FakeBackend) -> None:
    state = story.run(stream=True, backend=fake)
    parts = list(state.text_iter())
    assert len(parts) > 3 and "".join(parts) == state.text()
    assert "Once " in parts[0] and "<|open|>user" in state.text()
    assert state.result() == state["b"]


def test_text_iter_of_a_variable_gives_its_text_alone(fake: FakeBackend) -> None:
    state = story.run(stream=True, backend=fake)
    assert "".join(state.text_iter("b")) == state["b"]
    assert "".join(state.text_iter("a")) == state["a"], "a later reader sees everything"


def test_two_readers_each_see_everything(fake: FakeBackend) -> None:
    state = story.run(stream=True, backend=fake)
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append("".join(state.text_iter()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [state.text()] * 3


def test_streams_of_choices_and_of_later_branches_end() -> None:
    # D50: a select, then a gen that depends on it
    fake = FakeBackend()

    @rt.function
    def program(s: rt.State) -> None:
        s += "type: " + rt.gen("type", choices=["number", "word"])
        if s["type"] == "number":
            s += " value: " + rt.gen("value", max_tokens=4)
        else:
            s += " value: " + rt.gen("value", max_tokens=6)

    state = program.run(stream=True, backend=fake)
    assert "".join(state.text_iter("type")) == state["type"]
    assert "".join(state.text_iter("value")) == state["value"]
    assert "".join(state.text_iter()) == state.text() == f"type: {state['type']} value: {state['value']}"
    fake.close()


def test_an_unknown_name_raises_once_the_body_has_ended(fake: FakeBackend) -> None:
    state = story.run(stream=True, backend=fake)
    with pytest.raises(rt.UnknownVariable, match=r"'c'.*'a', 'b'"):
        list(state.text_iter("c"))
    with pytest.raises(rt.UnknownVariable):
        state["c"]


def test_a_stream_that_fails_raises_after_its_text() -> None:
    fake = FakeBackend(context=30)

    @rt.function
    def program(s: rt.State) -> None:
        s += "short" + rt.gen("a", max_tokens=4)
        s += "x" * 40 + rt.gen("b")

    state = program.run(stream=True, backend=fake)
    parts: list[str] = []
    with pytest.raises(rt.ProgramError, match="context"):
        for part in state.text_iter():
            parts.append(part)
    assert "".join(parts).startswith("short")
    fake.close()


def test_reading_a_name_that_comes_later_waits(fake: FakeBackend) -> None:
    gate = threading.Event()

    @rt.function
    def program(s: rt.State) -> None:
        gate.wait(5)
        s += "x" + rt.gen("late", max_tokens=3)

    state = program.run(stream=True, backend=fake)
    threading.Timer(0.05, gate.set).start()
    assert len(state["late"]) == 3


def test_async_streams_from_another_loop(fake: FakeBackend) -> None:
    async def main() -> None:
        state = story.run(stream=True, backend=fake)
        parts = [part async for part in state.text_async_iter()]
        assert "".join(parts) == state.text()
        assert "".join([part async for part in state.text_async_iter("b")]) == state["b"]

    asyncio.run(main())


def test_streamed_meta_data_has_only_new_logprobs(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "x" + rt.gen("a", max_tokens=9, return_logprob=True, top_logprobs_num=1)

    async def main() -> None:
        state = program.run(stream=True, backend=fake)
        pairs: list[tuple[str, dict[str, Any]]] = []
        async for text, meta in state.text_async_iter("a", return_meta_data=True):
            pairs.append((text, meta))
        assert "".join(text for text, _ in pairs) == state["a"]
        entries = [entry for _, meta in pairs for entry in meta.get("output_token_logprobs", [])]
        assert entries == state.get_meta_info("a")["output_token_logprobs"] and len(entries) == 9

    asyncio.run(main())


# ---------------------------------------------------------------- async def programs


@rt.function
async def agent(s: rt.AsyncState, topic: str) -> int:
    number = rt.gen("n", dtype=int)
    s += topic + number
    forks = s.fork(3)
    forks += lambda i: f"[{i}]" + rt.gen("v", max_tokens=4)
    values = await forks.gather("v")
    forks.join()
    assert values == await s["v"]
    s += "".join(values) + rt.gen("end", max_tokens=3)
    assert "end" not in s or await s["end"]
    return await s[number]


def numbers() -> FakeBackend:
    return FakeBackend(lambda prompt, call: "12 " if call.constraint is not None else prompt[-3:] + "abcd")


def test_async_programs_from_plain_code_and_from_a_running_loop() -> None:
    fake = numbers()
    state = agent.run("T", backend=fake)
    assert state.result() == 12 and len(state["v"]) == 3

    async def main() -> list[rt.State[int]]:
        return list(await asyncio.gather(*(agent.run_async(f"t{i}", backend=fake) for i in range(5))))

    states = asyncio.run(main())
    assert [state.result() for state in states] == [12] * 5
    assert all(state.text().startswith(f"t{i}") for i, state in enumerate(states))
    streamed = agent.run("T", backend=fake, stream=True)
    assert "".join(streamed.text_iter()) == state.text()
    assert idle(fake)
    fake.close()


def test_async_batches_own_no_threads() -> None:
    fake = numbers()
    peak = 0

    @rt.function
    async def program(s: rt.AsyncState, i: int) -> int:
        nonlocal peak
        s += f"{i}" + rt.gen("v", max_tokens=2)
        await asyncio.sleep(0.05)
        peak = max(peak, threading.active_count())
        await s["v"]
        if i == 7:
            raise ValueError("seven")
        return i

    states = list(program.run_batch([(i,) for i in range(500)], num_threads=500, backend=fake))
    assert [s.ret_value for s in states] == [None if i == 7 else i for i in range(500)]
    assert isinstance(states[7].error(), ValueError)
    assert peak < 10 and idle(fake)
    fake.close()


def test_plain_programs_work_inside_a_running_loop(fake: FakeBackend) -> None:
    async def main() -> str:
        return story.run(backend=fake)["b"]  # as in a notebook cell

    assert asyncio.run(main())

    async def awaited() -> str:
        return (await story.run_async(backend=fake)).result()

    assert asyncio.run(awaited())


def test_waiting_on_the_own_loop_says_what_to_write() -> None:
    fake = numbers()

    @rt.function
    async def program(s: rt.AsyncState) -> None:
        story.run()["a"]

    with pytest.raises(RuntimeError, match="use `await`"):
        program.run(backend=fake)
    fake.close()


def test_cancelling_an_awaited_program_ends_its_generations() -> None:
    fake = FakeBackend(delay_s=0.1)

    @rt.function
    async def program(s: rt.AsyncState) -> None:
        s += "x" + rt.gen("a")
        await s["a"]

    async def main() -> None:
        task = asyncio.create_task(program.run_async(backend=fake))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    import time

    time.sleep(0.05)
    assert fake.requests[0].cancelled and idle(fake)
    fake.close()
