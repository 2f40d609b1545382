"""The client core against a scripted scheduler: one terminal event per choice, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_scheduler import ByteTokenizer, FakeScheduler, expected, fresh_epoch, ids_of
from ramet.runtime.frontend.client import Client, GenerateRequest, ScoreRequest
from ramet.runtime.frontend.compile_check import constraint_key
from ramet.runtime.frontend.submission import SPECS_SENT
from ramet.runtime.protocol import messages as m
from ramet.runtime.protocol.errors import (
    ConstraintCrashed,
    GenerationFailed,
    InvalidConstraint,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    UnsupportedConstraint,
)
from ramet.runtime.protocol.randomness import choice_key, row_key

PROMPT = list(b"hello world")


def compile_stub(spec: m.ConstraintSpec) -> object:
    if spec.text == "bad":
        raise InvalidConstraint("not a schema")
    if spec.text == "unsupported":
        raise UnsupportedConstraint("no", keyword="contains", pointer="/contains")
    return object()


@contextlib.asynccontextmanager
async def scene(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Client, FakeScheduler]]:
    endpoint = f"ipc://{tmp_path}/f.sock"
    client_settings = {key: settings.pop(key) for key in ("lost_s", "compile", "max_compiling") if key in settings}
    async with FakeScheduler(endpoint, fresh_epoch(), **settings) as scheduler:
        client = Client(endpoint, ByteTokenizer(), **{"compile": compile_stub, **client_settings})
        await client.start(5)
        try:
            yield client, scheduler
        finally:
            await client.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 20))


async def restart(scheduler: FakeScheduler, **settings: Any) -> FakeScheduler:
    await scheduler.die()
    return await FakeScheduler(scheduler.endpoint, fresh_epoch(), pause=scheduler.pause, **settings).__aenter__()


def test_chunks_join_to_the_result(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, _):
            generation = client.generate(GenerateRequest(PROMPT, seed=7, max_tokens=20, logprobs=0))
            await generation.accepted()
            chunks = [chunk async for chunk in generation]
            (result,) = await generation.result()
            assert result.ids == expected(PROMPT, row_key(7), 20)
            assert "".join(chunk.text for chunk in chunks) == result.text == bytes(result.ids).decode()
            assert [token for chunk in chunks for token in chunk.ids] == result.ids
            assert [chunk.offset for chunk in chunks] == sorted({chunk.offset for chunk in chunks})
            assert result.logprobs is not None and len(result.logprobs) == 20
            assert [chunk.finish is not None for chunk in chunks].count(True) == 1
            assert result.finish_reason == "length" and result.usage.completion == 20
            assert client.open_requests == 0

    run(body)


def test_context_is_asked_and_max_tokens_capped_to_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, context=20) as (client, scheduler):
            (result,) = await client.generate(GenerateRequest(PROMPT, max_tokens=1000)).result()
            assert len(result.ids) == 9
            (result,) = await client.generate(GenerateRequest(PROMPT)).result()
            assert len(result.ids) == 9
            with pytest.raises(InvalidRequest, match=r"21.*20") as caught:
                client.generate(GenerateRequest(list(range(21))))
            assert caught.value.code == "context_length_exceeded"
            assert len(scheduler.got(m.Submit)) == 2

    run(body)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"n": 0}, "n"),
        ({"stop": ("",)}, "stop"),
        ({"logit_bias": {999: 1.0}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(5000), 1.0)}, "logit_bias"),
        ({"repetition_penalty": 1e-38}, "repetition_penalty"),
        ({"stop_ids": (-1,)}, "stop_token_ids"),
        ({"ids": [5, 267]}, "ids"),
        ({"ids": [-1]}, "ids"),
        ({"ids": []}, "prompt"),
        ({"parent": ((99, 0), 3)}, "parent"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(tmp_path: Path, change: dict[str, Any], param: str) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            with pytest.raises(InvalidRequest) as caught:
                client.generate(GenerateRequest(**{"ids": PROMPT, **change}))
            assert caught.value.param == param
            assert client.open_requests == 0 and not scheduler.got(m.Submit)

    run(body)


def test_seed_is_drawn_where_none_is_given(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            for _ in range(3):
                await client.generate(GenerateRequest(PROMPT, max_tokens=1)).result()
            assert len({submit.sampling.key for submit in scheduler.got(m.Submit)}) == 3

    run(body)


def test_n_choices_end_once_each(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, _):
            generation = client.generate(GenerateRequest(PROMPT, seed=3, max_tokens=9, n=3))
            chunks = [chunk async for chunk in generation]
            results = await generation.result()
            assert sorted(chunk.choice for chunk in chunks if chunk.finish) == [0, 1, 2]
            for index, result in enumerate(results):
                assert result.ids == expected(PROMPT, choice_key(row_key(3), index), 9)
                assert result.branch == (generation.id, index)
            assert [result.usage.prompt for result in results] == [len(PROMPT), 0, 0]

    run(body)


@pytest.mark.parametrize("kills", [1, 3])
def test_streams_survive_a_restart_of_the_scheduler(tmp_path: Path, kills: int) -> None:
    async def body() -> None:
        async with scene(tmp_path, pause=0.004) as (client, scheduler):
            requests = [
                GenerateRequest([*PROMPT, 65 + i], seed=i, max_tokens=60, n=1 + i % 3, logprobs=0, stop=("zz",))
                for i in range(6)
            ]
            generations = [client.generate(request) for request in requests]
            tasks = [asyncio.create_task(collect(generation)) for generation in generations]
            alive = scheduler
            for _ in range(kills):
                await alive.until(lambda: sum(len(row.generated) for row in alive.rows) > 60)  # noqa: B023
                alive = await restart(alive)
            streams = await asyncio.gather(*tasks)
            await alive.die()
            for i, generation in enumerate(generations):
                results = await generation.result()
                for index, result in enumerate(results):
                    assert result.ids == expected([*PROMPT, 65 + i], choice_key(row_key(i), index), 60)
                    assert result.text == bytes(result.ids).decode()
                    assert "".join(chunk.text for chunk in streams[i] if chunk.choice == index) == result.text
                    assert result.logprobs is not None and len(result.logprobs) == 60
            resent = [submit for submit in alive.got(m.Submit) if submit.usage is not None]
            assert resent and all(submit.usage.completion == len(submit.forced) for submit in resent)

    async def collect(generation: Any) -> list[Any]:
        return [chunk async for chunk in generation]

    run(body)


def test_resend_of_what_was_never_admitted_keeps_n(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, seed=3, max_tokens=4, n=2))
            await generation.accepted()
            alive = await restart(scheduler)
            results = await generation.result()
            assert [submit.n for submit in alive.got(m.Submit)] == [2]
            assert [result.ids for result in results] == [
                expected(PROMPT, choice_key(row_key(3), index), 4) for index in range(2)
            ]
            await alive.die()

    run(body)


def test_parent_of_an_older_epoch_becomes_full_ids(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, seed=1, max_tokens=8, keep=True))
            (result,) = await generation.result()
            at = len(PROMPT) + 5
            child = GenerateRequest(list(b"!?"), parent=(generation.branch, at), seed=2, max_tokens=4)
            (first,) = await client.generate(child).result()
            assert scheduler.got(m.Submit)[-1].parent == (generation.branch, at)
            alive = await restart(scheduler)
            (second,) = await client.generate(child).result()
            submit = alive.got(m.Submit)[-1]
            assert submit.parent is None
            assert ids_of(submit) == PROMPT + result.ids[:5] + list(b"!?")
            assert second.ids == first.ids
            client.release(generation.branch)
            client.release(generation.branch)
            with pytest.raises(InvalidRequest, match="released"):
                client.generate(child)
            await alive.die()

    run(body)


def test_fork_of_a_running_branch_and_of_one_that_just_ended(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, pause=0.003) as (client, scheduler):
            parent = client.generate(GenerateRequest(PROMPT, seed=1, max_tokens=50))
            await anext(parent)
            child = client.generate(GenerateRequest([65], parent=(parent.branch, 4), seed=2, max_tokens=3))
            (result,) = await child.result()
            assert result.ids == expected([*PROMPT[:4], 65], row_key(2), 3)
            # The scheduler has forgotten the branch, the client has not heard of it yet.
            scheduler.branches.clear()
            child = client.generate(GenerateRequest([65], parent=(parent.branch, 4), seed=2, max_tokens=3))
            assert (await child.result())[0].ids == result.ids
            assert [submit.parent is None for submit in scheduler.got(m.Submit)[-2:]] == [False, True]

    run(body)


def test_release_reaches_the_scheduler_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, max_tokens=5, keep=True, n=2))
            client.release((generation.id, 0))
            await generation.result()
            client.release((generation.id, 1))
            await scheduler.until(lambda: len(scheduler.got(m.Release)) == 2)
            assert not scheduler.branches

    run(body)


def test_cancel_ends_each_choice_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, pause=0.003) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, max_tokens=400, n=2))
            await anext(generation)
            generation.cancel()
            generation.cancel()
            results = await generation.result()
            assert [result.finish_reason for result in results] == ["cancelled"] * 2
            assert len(scheduler.got(m.Cancel)) == 1

    run(body)


@pytest.mark.parametrize("how", ["task", "drop", "result", "break"])
def test_a_consumer_that_goes_away_cancels(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        async with scene(tmp_path, pause=0.003) as (client, scheduler):
            request = GenerateRequest(PROMPT, max_tokens=400)

            async def consume() -> None:
                generation = client.generate(request)
                if how == "result":
                    await generation.result()
                async for chunk in generation:
                    if how == "break" and chunk.ids:
                        return

            if how == "drop":
                generation = client.generate(request)
                await anext(generation)
                del generation
            elif how == "break":
                await consume()
            else:
                task = asyncio.create_task(consume())
                await scheduler.until(lambda: bool(scheduler.rows) and len(scheduler.rows[0].generated) > 3)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            gc.collect()
            await scheduler.until(lambda: scheduler.rows[0].ended, 1)
            await scheduler.until(lambda: client.open_requests == 0, 1)

    run(body)


def test_cancelled_requests_are_not_sent_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, max_tokens=40))
            await generation.accepted()
            await scheduler.die()
            generation.cancel()
            alive = await restart(scheduler)
            (result,) = await generation.result()
            assert result.finish_reason == "cancelled"
            assert not alive.got(m.Submit)
            await alive.die()

    run(body)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("queue_full", Overloaded),
        ("draining", Overloaded),
        ("pool_too_small", InvalidRequest),
        ("context_length_exceeded", InvalidRequest),
        ("timeout", RequestTimeout),
    ],
)
def test_refusals_are_raised_everywhere(tmp_path: Path, code: str, error: type[Exception]) -> None:
    async def body() -> None:
        refuse = lambda submit: m.Rejected(submit.id, code, "because")  # noqa: E731
        async with scene(tmp_path, reject=refuse) as (client, _):
            for wait in ("accepted", "result", "__anext__"):
                generation = client.generate(GenerateRequest(PROMPT, max_tokens=4))
                with pytest.raises(error, match="because") as caught:
                    await getattr(generation, wait)()
                assert getattr(caught.value, "code", "") == code
            assert client.open_requests == 0

    run(body)


def test_an_accepted_request_is_not_refused_by_the_next_scheduler(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, seed=5, max_tokens=6))
            await generation.accepted()
            refusals = iter([True, True, False])
            alive = await restart(
                scheduler, reject=lambda submit: m.Rejected(submit.id, "queue_full", "") if next(refusals) else None
            )
            (result,) = await generation.result()
            assert result.ids == expected(PROMPT, row_key(5), 6)
            await alive.die()

    run(body)


def test_a_message_that_makes_no_sense_ends_its_request_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            requests = [client.generate(GenerateRequest(PROMPT, seed=seed, max_tokens=30)) for seed in (1, 2)]
            await scheduler.until(lambda: len(scheduler.rows) == 2)
            row = scheduler.rows[0]
            await scheduler.send(row.client, m.TokenDelta(row.submit.id, 0, len(PROMPT), b"\1", b"\0", None, 0))
            with pytest.raises(GenerationFailed, match="could not be handled"):
                await requests[row.submit.id != requests[0].id].result()
            (result,) = await requests[row.submit.id == requests[0].id].result()
            assert len(result.ids) == 30 and client.open_requests == 0
            await scheduler.until(lambda: scheduler.got(m.Cancel)[-1:] == [m.Cancel(row.submit.id)])

    run(body)


def test_timeout(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, timeout_s=0.05, max_tokens=6))
            with pytest.raises(RequestTimeout, match=r"0\.05"):
                await generation.result()
            assert 0 < scheduler.got(m.Submit)[0].remaining_ms <= 50
            await scheduler.until(lambda: len(scheduler.got(m.Cancel)) == 1)

    run(body)


def test_a_timeout_of_the_schedulers_is_a_timeout(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, timeout_s=9, max_tokens=6, n=2))
            await generation.accepted()
            row = scheduler.rows[0]
            over = m.Finished(row.submit.id, 0, "cancelled", m.Usage(), message="timeout: 9000 ms are over")
            await scheduler.send(row.client, over)
            with pytest.raises(RequestTimeout):
                await generation.result()
            assert client.open_requests == 0

    run(body)


def test_constraints_are_compiled_before_and_sent_once_per_epoch(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            good = m.ConstraintSpec("regex", "a+")
            for _ in range(3):
                await client.generate(GenerateRequest(PROMPT, max_tokens=2, constraint=good)).result()
            assert len(scheduler.specs) == 1
            for text, error in (("bad", InvalidConstraint), ("unsupported", UnsupportedConstraint)):
                for _ in range(2):
                    spec = m.ConstraintSpec("regex", text)
                    generation = client.generate(GenerateRequest(PROMPT, max_tokens=2, constraint=spec))
                    with pytest.raises(error):
                        await generation.accepted()
            assert len(scheduler.got(m.Submit)) == 3 and len(scheduler.specs) == 1
            alive = await restart(scheduler)
            await client.generate(GenerateRequest(PROMPT, max_tokens=2, constraint=good)).result()
            assert len(alive.specs) == 1
            await alive.die()

    run(body)


@pytest.mark.parametrize("crashes", [1, 2])
def test_a_compiler_that_was_killed_is_asked_again(tmp_path: Path, crashes: int) -> None:
    left = [crashes]

    def compile(spec: m.ConstraintSpec) -> object:
        if left[0]:
            left[0] -= 1
            raise ConstraintCrashed("the process died")
        return object()

    async def body() -> None:
        async with scene(tmp_path, compile=compile) as (client, _):
            spec = m.ConstraintSpec("regex", "a+")
            generation = client.generate(GenerateRequest(PROMPT, max_tokens=2, constraint=spec))
            if crashes == 1:
                assert len((await generation.result())[0].ids) == 2
            else:
                with pytest.raises(ConstraintCrashed):
                    await generation.result()
                assert (await client.generate(GenerateRequest(PROMPT, max_tokens=2, constraint=spec)).result())[0].ids

    run(body)


def test_stop_that_ends_no_row_before_min_tokens_is_text(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            request = GenerateRequest(PROMPT, max_tokens=20, min_tokens=6, stop=("XY",))
            generation = client.generate(request)
            await scheduler.until(lambda: bool(scheduler.rows))
            row = scheduler.rows[0]
            for token in b"aXYbcXYd":
                if not row.ended:
                    await scheduler.append(row, token)
            (result,) = await generation.result()
            assert result.finish_reason == "stop" and result.text == "aXYbc"

    run(body)


def test_score_and_control_survive_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            scored = await client.score(ScoreRequest(PROMPT, [[1, 2], [3]]))
            assert [len(entry) for entry in scored.logprobs] == [2, 1]
            with pytest.raises(InvalidRequest):
                await client.score(ScoreRequest(PROMPT, [[1], []]))
            with pytest.raises(InvalidRequest):
                await client.score(ScoreRequest(PROMPT, [[VOCAB_OUT]]))
            await scheduler.die()
            call = asyncio.create_task(client.control("flush"))
            await asyncio.sleep(0.05)
            alive = await restart(scheduler)
            assert (await call)["op"] == "flush"
            await alive.die()

    VOCAB_OUT = 5000
    run(body)


def test_a_scheduler_that_stays_away_fails_what_is_open(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False, lost_s=1.2) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, max_tokens=6))
            await generation.accepted()
            await scheduler.die()
            with pytest.raises(GenerationFailed, match="not answered"):
                await generation.result()

    run(body)


def test_close_ends_what_is_open(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, _):
            generation = client.generate(GenerateRequest(PROMPT, max_tokens=6))
            await generation.accepted()
            await client.close()
            assert [result.finish_reason for result in await generation.result()] == ["cancelled"]
            with pytest.raises(GenerationFailed):
                client.generate(GenerateRequest(PROMPT))

    run(body)


def test_a_program_that_blocks_its_loop_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.runtime.frontend.link.STALL_S", 0.3)

    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, seed=5, max_tokens=6))
            await generation.accepted()
            await scheduler.step()
            await anext(generation)
            scheduler.rows.clear()  # it heard nothing for too long and gave the frontend up
            time.sleep(0.6)
            await scheduler.until(lambda: len(scheduler.rows) == 1)
            for _ in range(5):
                await scheduler.step()
            (result,) = await generation.result()
            assert result.ids == expected(PROMPT, row_key(5), 6)

    run(body)


def test_start_says_that_nobody_answers(tmp_path: Path) -> None:
    async def body() -> None:
        client = Client(f"ipc://{tmp_path}/nobody.sock", ByteTokenizer(), context=10)
        with pytest.raises(GenerationFailed, match="no scheduler answers"):
            await client.start(0.2)
        await client.close()

    run(body)


def test_heartbeats_are_quicker_while_requests_are_open(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            await asyncio.sleep(0.1)
            before = len(scheduler.got(m.Heartbeat))
            generation = client.generate(GenerateRequest(PROMPT, max_tokens=6))
            await asyncio.sleep(0.8)
            beats = scheduler.got(m.Heartbeat)[before:]
            assert 3 <= len(beats) <= 5 and beats[-1].busy
            generation.cancel()

    run(body)


# ---------------------------------------------------------------- kept branches of calls that failed


@pytest.mark.parametrize("how", ["cancelled", "dropped", "timeout", "error", "one ended", "consumer"])
def test_a_kept_branch_of_a_call_that_failed_is_released(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            limit = 0.05 if how == "timeout" else None
            generation = client.generate(GenerateRequest(PROMPT, n=2, max_tokens=9, keep=True, timeout_s=limit))
            await generation.accepted()
            await scheduler.step()
            if how == "error":
                for row in scheduler.rows:
                    await scheduler._end(row, "error")
                with pytest.raises(GenerationFailed):
                    await generation.result()
            elif how == "timeout":
                with pytest.raises(RequestTimeout):
                    await generation.result()
            elif how == "dropped":
                del generation
                gc.collect()
            elif how == "consumer":
                task = asyncio.create_task(generation.result())
                await asyncio.sleep(0.01)
                task.cancel()
            else:
                if how == "one ended":
                    await scheduler._end(scheduler.rows[0], "end")
                    await asyncio.sleep(0.05)
                generation.cancel()
            await scheduler.until(lambda: not scheduler.branches)
            assert not client.open_requests and not len(client._branches)

    run(body)


def test_a_refused_choice_of_a_resend_cancels_the_others(tmp_path: Path) -> None:
    def second(submit: m.Submit) -> m.Rejected | None:
        return m.Rejected(submit.id, "pool_too_small", "no room") if submit.choice == 1 else None

    async def body() -> None:
        async with scene(tmp_path, auto=False) as (client, scheduler):
            generation = client.generate(GenerateRequest(PROMPT, n=3, max_tokens=9))
            await generation.accepted()
            await scheduler.step()
            await generation.batch()
            alive = await restart(scheduler, auto=False, reject=second)
            with pytest.raises(InvalidRequest, match="no room"):
                await generation.result()
            await alive.until(lambda: len(alive.rows) == 2 and all(row.ended for row in alive.rows))
            await alive.die()

    run(body)


def test_a_client_that_cannot_start_leaves_nothing_open(tmp_path: Path) -> None:
    """A context that is left open hangs the collector, and so the process: hence a child."""
    script = f"""
import asyncio, gc, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from fake_scheduler import ByteTokenizer
from ramet.runtime.frontend.client import Client
from ramet.runtime.protocol.errors import GenerationFailed

async def main():
    client = Client("ipc://{tmp_path}/nobody.sock", ByteTokenizer())
    try:
        await client.start(0.1)
    except GenerationFailed:
        print("refused")

asyncio.run(main())
gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout == "refused\n" and done.returncode == 0, done.stderr


@pytest.mark.parametrize("limit", [64, None])
def test_constraints_that_wait_to_be_compiled_are_bounded_where_clients_share_the_compiler(
    tmp_path: Path, limit: int | None
) -> None:
    go = threading.Event()

    def compile(spec: m.ConstraintSpec) -> object:
        return go.wait(10)

    async def body() -> None:
        async with scene(tmp_path, compile=compile, max_compiling=limit) as (client, _):
            specs = [m.ConstraintSpec("regex", str(i)) for i in range(80)]
            made = [client.generate(GenerateRequest(PROMPT, max_tokens=2, constraint=spec)) for spec in specs]
            same = client.generate(GenerateRequest(PROMPT, max_tokens=2, constraint=specs[0]))
            await asyncio.sleep(0.05)
            go.set()
            ends = await asyncio.gather(*(one.result() for one in (*made, same)), return_exceptions=True)
            refused = [end for end in ends if isinstance(end, Overloaded)]
            assert len(refused) == (80 - limit if limit else 0)
            assert all(str(limit) in str(end) for end in refused)
            assert all(isinstance(end, list | Overloaded) for end in ends) and isinstance(ends[-1], list)

    run(body)


def test_what_is_used_is_remembered(tmp_path: Path) -> None:
    """Verdicts, and which constraints the scheduler has: the least recently used goes first, and there is a bound."""

    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            client._constraints._remembered = 4
            first = m.ConstraintSpec("regex", "first")
            for i in range(12):
                for spec in (first, m.ConstraintSpec("regex", str(i))):
                    await client.generate(GenerateRequest(PROMPT, max_tokens=1, constraint=spec)).result()
                assert client._constraints.passed(constraint_key(first))
            assert scheduler.specs.count(constraint_key(first)) == 1
            for i in range(SPECS_SENT + 9):
                client._submission._specs_sent[str(i)] = None
            await client.generate(GenerateRequest(PROMPT, max_tokens=1, constraint=first)).result()
            for i in range(20):
                spec = m.ConstraintSpec("regex", f"more {i}")
                await client.generate(GenerateRequest(PROMPT, max_tokens=1, constraint=spec)).result()
            assert len(client._submission._specs_sent) <= SPECS_SENT

    run(body)
