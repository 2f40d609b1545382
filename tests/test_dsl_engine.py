"""Programs on real processes: an engine whose worker is the KV oracle."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from dsl_oracle import oracle_engine
from dsl_server import served
from ramet.frontend_lang.graph import Block, GenOp, Graph, Ref, TextOp
from ramet.runtime.frontend.chat import ChatTemplate

import ramet as rt


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rt.Engine]:
    with oracle_engine(tmp_path_factory.mktemp("model")) as running:
        yield running


def stats(engine: rt.Engine) -> dict[str, Any]:
    return dict(engine.stats())


def idle_stats(engine: rt.Engine) -> dict[str, Any]:
    """Counters, once everything that was released has arrived."""
    for _ in range(100):
        now = stats(engine)
        if not now["blocks"]["locked"] and not now["blocks"]["private"] and not any(now["requests"].values()):
            return now
        time.sleep(0.02)
    return now


@rt.function
def conversation(s: rt.State, topic: str) -> None:
    s += rt.system("Rules " * 30) + rt.user("About " + topic)
    s += rt.assistant(rt.gen("plan", max_tokens=20))
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += rt.user(f"Part {i}") + rt.assistant(rt.gen("part", max_tokens=12))
    forks.join()
    s += rt.user("\n".join(s["part"])) + rt.assistant(rt.gen("end", max_tokens=10))


def test_a_program_is_the_same_as_its_calls_by_hand(engine: rt.Engine) -> None:
    state = conversation.run("trees", backend=engine, temperature=0)
    ids = state.token_ids()
    for name in ("plan", "end"):
        meta = state.get_meta_info(name)
        new = meta["output_ids"]
        start = meta["prompt_tokens"]
        assert ids[start : start + len(new)] == new
        alone = engine.generate(input_ids=ids[:start], sampling_params={"temperature": 0, "max_new_tokens": len(new)})
        assert alone["output_ids"] == new, "a call of a program is the request that its ids say"
    assert state.get_meta_info("end")["cached_tokens"] > state.get_meta_info("plan")["prompt_tokens"] - 16


def test_finished_states_lock_nothing(engine: rt.Engine) -> None:
    states = list(conversation.run_batch([(f"t{i}",) for i in range(20)], backend=engine))
    assert all(state.error() is None for state in states)
    now = idle_stats(engine)
    assert now["blocks"]["locked"] == now["blocks"]["private"] == now["requests"]["kept"] == 0
    total = now["blocks"]
    assert total["free"] + total["evictable"] == total["total"]
    assert len(states) == 20 and all(len(state["part"]) == 3 for state in states)


def test_a_live_branch_holds_its_blocks_until_it_ends(engine: rt.Engine) -> None:
    held: list[int] = []

    @rt.function
    def program(s: rt.State) -> None:
        s += "hold " * 20 + rt.gen("a", max_tokens=8)
        s.sync()
        held.append(stats(engine)["requests"]["kept"])
        s += rt.gen("b", max_tokens=4)

    program.run(backend=engine).sync()
    assert held == [1]
    assert idle_stats(engine)["requests"]["kept"] == 0


def test_a_thousand_forks_run_without_a_thread_of_their_own(engine: rt.Engine) -> None:
    before = threading.active_count()
    peak = 0

    @rt.function
    def program(s: rt.State) -> None:
        nonlocal peak
        s += "root " * 20
        forks = s.fork(300)
        forks += lambda i: f" {i}:" + rt.gen("v", max_tokens=3)
        while "v" not in forks[299]:
            peak = max(peak, threading.active_count())
            time.sleep(0.01)
        forks.join()

    state = program.run(backend=engine)
    assert len(state["v"]) == 300 and state.error() is None
    assert peak <= before
    assert idle_stats(engine)["blocks"]["locked"] == 0


def test_select_on_the_engine(engine: rt.Engine) -> None:
    choices = [" John", " John Doe", " w300"]

    @rt.function
    def program(s: rt.State) -> None:
        s += "Name:" + rt.select("x", choices) + rt.gen("y", max_tokens=3)

    state = program.run(backend=engine)
    assert state["x"] in choices and state.text() == "Name:" + state["x"] + state["y"]
    rows = state.get_meta_info("x")["input_token_logprobs"]
    assert ["".join(text for _, _, text in row) for row in rows] == choices


def test_seeds_make_a_program_repeatable_and_forks_differ(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "seed " + rt.gen("a", max_tokens=8)
        forks = s.fork(4)
        forks += rt.gen("b", max_tokens=8)
        forks.join()

    first, again, other = (program.run(backend=engine, seed=seed) for seed in (1, 1, 2))
    assert first["a"] == again["a"] and first["b"] == again["b"]
    assert len(set(first["b"])) == 4 and first["a"] != other["a"]


def test_stops_and_limits_are_told_apart(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "x" + rt.gen("stop", max_tokens=400, stop=" w", temperature=0)
        s += "|" + rt.gen("length", max_tokens=5, temperature=0, ignore_eos=True)

    state = program.run(backend=engine)
    reasons = {name: state.get_meta_info(name)["finish_reason"] for name in ("stop", "length")}
    assert reasons == {
        "stop": {"type": "stop", "matched": " w"},
        "length": {"type": "length"},
    }
    assert " w" not in state["stop"]


def test_roles_give_the_ids_of_the_chat_template(engine: rt.Engine) -> None:
    messages = [("user", " Hi\nthere "), ("assistant", "Hello."), ("user", "<|end|> bye")]

    @rt.function
    def program(s: rt.State) -> None:
        for role, content in messages:
            s += rt.role(role, content)
        s += rt.assistant_begin() + rt.gen("x", max_tokens=1, temperature=0) + rt.assistant_end()

    state = program.run(backend=engine)
    start = state.get_meta_info("x")["prompt_tokens"]
    template = ChatTemplate(engine.backend.meta, engine.backend.tokenizer)
    assert state.token_ids()[:start] == template.ids([{"role": r, "content": c} for r, c in messages])
    assert state.messages()[0] == {"role": "system", "content": "Default."}


# ---------------------------------------------------------------- Engine.generate


def test_generate_has_the_shapes_that_users_know(engine: rt.Engine) -> None:
    params = {"temperature": 0, "max_new_tokens": 6}
    one = engine.generate("Hello", params)
    assert set(one) == {"text", "output_ids", "meta_info"}
    assert one["meta_info"]["completion_tokens"] == 6 and one["meta_info"]["finish_reason"] == {"type": "length"}
    many = engine.generate(["Hello", "World"], params)
    assert many[0]["text"] == one["text"] and len(many) == 2
    assert engine.generate(input_ids=list(b"Hello"), sampling_params=params)["output_ids"] == one["output_ids"]
    assert len(engine.generate("Hello", {**params, "temperature": 1, "n": 3})) == 3
    steps = list(engine.generate("Hello", params, stream=True))
    assert steps[-1]["text"] == one["text"] and steps[-1]["meta_info"]["completion_tokens"] == 6
    assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(steps))
    scored = engine.generate("Hello", params, return_logprob=True, top_logprobs_num=2, logprob_start_len=0)
    info = scored["meta_info"]
    assert len(info["output_token_logprobs"]) == 6 and len(info["output_top_logprobs"][0]) == 2
    assert [text for _, _, text in info["input_token_logprobs"]] == list("ello")


def test_async_generate_from_another_loop(engine: rt.Engine) -> None:
    async def main() -> None:
        params = {"temperature": 0, "max_new_tokens": 4}
        results = await asyncio.gather(*(engine.async_generate(f"p{i}", params) for i in range(8)))
        assert len({r["text"] for r in results}) == 8
        parts = [part async for part in await engine.async_generate("p0", params, stream=True)]
        assert parts[-1]["text"] == results[0]["text"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompt": "a", "input_ids": [1]}, rt.InvalidRequest, "either prompt"),
        ({}, rt.InvalidRequest, "either prompt"),
        ({"prompt": "a", "sampling_params": {"tempratur": 1}}, TypeError, "no option 'tempratur'"),
        ({"prompt": ["a"], "stream": True}, rt.InvalidRequest, "takes one prompt"),
        ({"prompt": "a" * 5000}, rt.InvalidRequest, "4096"),
        ({"prompt": ""}, rt.InvalidRequest, "no text"),
    ],
)
def test_generate_says_what_is_wrong(
    engine: rt.Engine, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine.generate(**arguments)


# ---------------------------------------------------------------- life


def test_wrong_options_are_named() -> None:
    with pytest.raises(TypeError, match=r"no option 'kv_token'.*kv_tokens"):
        rt.Engine(kv_token=5)
    with pytest.raises(TypeError, match="kernels"):
        rt.Engine(kernels="cuda")


def test_shutdown_ends_all_processes_and_later_use_says_so(tmp_path: Path) -> None:
    engine = oracle_engine(tmp_path / "model")
    children = psutil.Process().children(recursive=True)
    mine = [child for child in children if "ramet.runtime" in " ".join(child.cmdline())]
    state = conversation.run("x", backend=engine)
    state.sync()
    engine.shutdown()
    engine.shutdown()
    _, alive = psutil.wait_procs(mine, timeout=5)
    assert not [child for child in alive if "model" in " ".join(child.cmdline())] or len(alive) < len(mine)
    assert state["plan"] and state.text(), "a finished state needs no engine"
    with pytest.raises(RuntimeError, match="shut down"):
        engine.generate("x")


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import ramet as rt
from dsl_oracle import oracle_engine
from ramet.runtime.frontend.chat import ChatTemplate
engine = oracle_engine(Path({folder!r}))
rt.set_default_backend(engine)

@rt.function
def program(s):
    s += "a" + rt.gen("x", max_tokens=2000)

print(engine._session.launcher.status(), flush=True)
state = program.run()
{end}
"""


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "state.sync()", "1/0"])
def test_a_script_that_forgets_its_engine_leaves_no_process(tmp_path: Path, end: str) -> None:
    before = {p.pid for p in psutil.process_iter()}
    script = SCRIPT.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "model"), end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == {"pass": 0, "state.sync()": 0, "raise SystemExit(3)": 3, "1/0": 1}[end], done.stderr
    assert "Exception ignored" not in done.stderr
    left = [
        p
        for p in psutil.process_iter(["pid", "cmdline"])
        if p.pid not in before and str(tmp_path) in " ".join(p.info["cmdline"] or ())
    ]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert not alive


# ---------------------------------------------------------------- calls that do not come to their end


@rt.function
def two_calls(s: rt.State, n: int, timeout_s: float | None) -> None:
    s += "Begin " + rt.gen("a", max_tokens=4) + rt.gen("b", max_tokens=3000, ignore_eos=True, n=n, timeout_s=timeout_s)
    s += " and " + rt.gen("c", max_tokens=5)


@pytest.mark.parametrize("how", ["cancel", "timeout", "disconnect"])
def test_a_call_that_is_ended_from_outside_keeps_nothing(tmp_path: Path, how: str) -> None:
    with oracle_engine(tmp_path / "model", oracle_step_s=0.002) as engine:
        if how == "disconnect":
            leave_programs(engine)
        else:
            limit = 0.05 if how == "timeout" else None
            states = [two_calls.run(n, limit, backend=engine, stream=True) for n in (1, 1, 2)]
            if how == "cancel":
                time.sleep(0.1)
                for state in states:
                    state.cancel()
            assert all(state.error() is not None for state in states)
        now = idle_stats(engine)
        assert now["requests"] == {"running": 0, "queued": 0, "waiting": 0, "kept": 0}
        assert not now["blocks"]["private"] and not now["blocks"]["locked"]


def leave_programs(engine: rt.Engine) -> None:
    """Start a program on the server, and hang up while it generates."""
    endless = {"max_tokens": 3000, "ignore_eos": True}
    ops = (TextOp(0, ("Tell ", Ref("q"))), GenOp(0, 0, "a", endless), TextOp(0, (" and ",)), GenOp(0, 1, "b", endless))
    graph = msgspec.to_builtins(Graph("p", "p.py", ("q",), Block(ops)))
    body = msgspec.json.encode({"graph": graph, "items": [{"q": str(i)} for i in range(3)]})
    with served(engine) as url:
        with httpx.stream("POST", url + "/v1/programs", content=body, timeout=30) as reply:
            assert reply.status_code == 200
            until = time.monotonic() + 20
            while stats(engine)["requests"]["running"] < 3 and time.monotonic() < until:
                time.sleep(0.01)
        idle_stats(engine)


# ---------------------------------------------------------------- death of a process under a program


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_a_program_survives_the_death_of_a_process(tmp_path: Path, role: str) -> None:
    with oracle_engine(tmp_path / "model", oracle_step_s=0.005) as engine:
        undisturbed = conversation.run("trees", backend=engine, seed=5)
        undisturbed.sync()
        state = conversation.run("trees", backend=engine, seed=5, stream=True)
        for _ in range(3):
            time.sleep(0.1)
            child = next(child for child in engine._session.launcher.status().children if child.role == role)
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)
        assert state.text() == undisturbed.text()
        assert state["part"] == undisturbed["part"] and state.token_ids() == undisturbed.token_ids()
        assert idle_stats(engine)["requests"]["kept"] == 0
