"""Any program: its text is the concatenation of what was appended, and nothing is kept when it ends."""

from __future__ import annotations

import resource
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from dsl_waiting import idle
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.frontend_lang.fake import FakeBackend

import ramet as rt

TEXT = st.text(alphabet="ab é<|open|>\n", min_size=0, max_size=6)


@dataclass
class Model:
    """What a branch must hold: pieces of text, names of variables whose text stands there, branches."""

    pieces: list[Any] = field(default_factory=list)
    count: int = 0


step = st.one_of(
    st.tuples(st.just("text"), TEXT),
    st.tuples(st.just("gen"), st.integers(1, 12), st.sampled_from([None, "a", "e", " "])),
    st.tuples(st.just("select"), st.sets(st.sampled_from(["x", "xy", "y", "é"]), min_size=1)),
    st.tuples(st.just("role"), st.sampled_from(["user", "assistant"]), TEXT),
    st.tuples(st.just("sync")),
)
programs = st.recursive(
    st.lists(step, max_size=5),
    lambda inner: st.lists(
        st.one_of(step, st.tuples(st.just("fork"), st.lists(inner, min_size=1, max_size=3), st.booleans())), max_size=5
    ),
    max_leaves=6,
)


def grow(s: rt.State, steps: list[Any], pieces: list[Any], names: list[int], open_states: list[Any]) -> None:
    """Append the steps to ``s``; ``pieces`` gets what the text must be made of: text, or (state, name)."""
    for one in steps:
        kind = one[0]
        names[0] += 1
        name = f"v{names[0]}"
        if kind == "text":
            s += one[1]
            pieces.append(one[1])
        elif kind == "gen":
            s += rt.gen(name, max_tokens=one[1], stop=one[2])
            pieces.append((s, name))
        elif kind == "select":
            s += rt.select(name, sorted(one[1]))
            pieces.append((s, name))
        elif kind == "role":
            s += rt.role(one[1], one[2])
            pieces += [f"<|open|>{one[1]}\n", one[2], "<|close|>\n"]
        elif kind == "sync":
            s.sync()
        else:
            group = s.fork(len(one[1]))
            start = len(pieces)
            grown = []
            for child, steps_of in zip(group, one[1], strict=True):
                own = list(pieces)
                grow(child, steps_of, own, names, open_states)
                grown.append(own)
                open_states.append((child, own))
            if one[2]:
                group.join("concatenate")
                for own in grown:
                    pieces += own[start:]
            else:
                group.join()


@given(steps=programs)
@settings(max_examples=80, deadline=None)
def test_the_text_is_the_concatenation_of_what_was_appended(steps: list[Any]) -> None:
    fake = FakeBackend(chunk=2)
    try:

        @rt.function
        def program(s: rt.State) -> list[Any]:
            s += "^"
            states: list[Any] = []
            pieces: list[Any] = ["^"]
            grow(s, steps, pieces, [0], states)
            return [*states, (s, pieces)]

        state = program.run(backend=fake, seed=1)
        for branch, pieces in state.result():
            expected = "".join(p if isinstance(p, str) else p[0][p[1]] for p in pieces)
            assert branch.text() == expected
            ids = branch.token_ids()
            spelled = (
                "".join("<|open|>" if i == 256 else "<|close|>" if i == 257 else chr(i) for i in ids)
                .encode("latin-1")
                .decode()
            )
            assert expected.startswith(spelled), "ids spell the text, as far as it is encoded"
        assert idle(fake)
    finally:
        fake.close()


@pytest.mark.slow
def test_ten_thousand_async_bodies_need_few_threads_and_little_memory() -> None:
    fake = FakeBackend(delay_s=0.001, chunk=8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    threads = 0

    @rt.function
    async def program(s: rt.AsyncState, i: int) -> str:
        nonlocal threads
        s += f"{i}:" + rt.gen("a", max_tokens=8)
        value = await s["a"]
        threads = max(threads, threading.active_count())
        return str(value)

    count = 10_000
    states = list(program.run_batch(((i,) for i in range(count)), num_threads=count, backend=fake))
    assert len(states) == count and all(state.result() for state in states)
    assert threads <= 16
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 200, f"{grown:.0f} MB"
    assert idle(fake)
    fake.close()
