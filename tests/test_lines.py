"""The line between frontend and scheduler: a living frontend loses no request on it, nor one message the others."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_scheduler import ByteTokenizer
from ramet.runtime.frontend import link as link_module
from ramet.runtime.frontend.client import Client, GenerateRequest, ScoreRequest
from ramet.runtime.protocol import transport
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.protocol.messages import (
    Cancel,
    Heartbeat,
    Hello,
    Namespace,
    RowStart,
    StepPlan,
    ToFrontend,
    ToScheduler,
    ToWorker,
)
from ramet.runtime.protocol.transport import ANY_EPOCH, FrameDecoder, MessageTooLarge, encode_frame, encode_frames
from ramet.runtime.worker.core import WorkerCore
from ramet.runtime.worker.oracle import OracleRunner
from test_client import PROMPT, run, scene
from test_scheduler_process import Peer, Running, hello, serve

# ---------------------------------------------------------------- a frontend that was taken for dead


@pytest.mark.parametrize("kind", ["generate", "several", "score", "begun"])
def test_a_blocked_loop_loses_no_request(tmp_path: Path, kind: str) -> None:
    """The scheduler gives up a frontend whose loop is blocked; when the loop goes on, so do the requests."""
    running = Running(tmp_path)
    worker = Peer(running.config.worker_endpoint, ToWorker, b"work")
    core = WorkerCore(OracleRunner(64, 4, 260))

    ended = threading.Event()

    def work() -> None:
        worker.send(hello("worker"), epoch=ANY_EPOCH)
        while not ended.is_set():
            for message in worker.listen(0.05):
                if isinstance(message, RowStart):
                    core.start(message)
                elif isinstance(message, StepPlan):
                    worker.send(core.step(message))

    def blocked() -> None:
        """As long as the scheduler waits; it is woken by another frontend."""
        with closing(Peer(running.config.frontend_endpoint, ToFrontend, b"other")) as other:
            for _ in range(8):
                running.ahead += 1.0
                other.send(Heartbeat())
                time.sleep(0.05)

    threads = [threading.Thread(target=work)]

    async def body() -> None:
        client = Client(running.config.frontend_endpoint, ByteTokenizer(), context=60, compile=lambda _: object())
        await client.start(5)
        if kind == "score":
            scoring = asyncio.ensure_future(client.score(ScoreRequest(PROMPT, [[1, 2], [3]])))
            await client.control("stats")
            blocked()
            threads[0].start()
            assert [len(one) for one in (await asyncio.wait_for(scoring, 10)).logprobs] == [2, 1]
        else:
            asked = GenerateRequest(PROMPT, seed=3, max_tokens=9, ignore_eos=True, n=2 if kind == "several" else 1)
            generation = client.generate(asked)
            await generation.accepted()
            if kind == "begun":
                worker.send(hello("worker"), epoch=ANY_EPOCH)
                serve(worker, core, 3)
                await generation.batch()
            blocked()
            threads[0].start()
            results = await asyncio.wait_for(generation.result(), 10)
            assert {result.finish_reason for result in results} == {"length"}
            assert [len(result.ids) for result in results] == [9] * asked.n
        await client.close()

    try:
        asyncio.run(asyncio.wait_for(body(), 20))
    finally:
        ended.set()
        for thread in threads:
            thread.is_alive() and thread.join(5)
        running.stop()
        worker.close()


# ---------------------------------------------------------------- what is refused at the border


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", 3_000_000_000),
        ("logprobs", -1),
        ("priority", 1 << 70),
        ("timeout_s", float("nan")),
        ("timeout_s", 0.0),
        ("timeout_s", 1e300),
        ("continuations", [[1], []]),
        ("continuations", [[1], [1 << 40]]),
        ("continuations", [[1] * 100_000]),
    ],
)
def test_scores_out_of_range_are_refused(tmp_path: Path, field: str, value: Any) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, scheduler):
            asked = ScoreRequest(PROMPT, [[1]], logprobs=100 if field == "continuations" else 0)
            with pytest.raises(InvalidRequest, match=field.removesuffix("s")):
                await client.score(replace(asked, **{field: value}))
            assert not [one for one in scheduler.seen if type(one).__name__ == "Score"]
            assert len((await client.score(ScoreRequest(PROMPT, [[1]]))).logprobs) == 1

    run(body)


@pytest.mark.parametrize(("field", "value"), [("fan_out", 1 << 70), ("fan_out", -1), ("logits_from", -(1 << 40))])
def test_requests_out_of_range_are_refused(tmp_path: Path, field: str, value: int) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, _):
            with pytest.raises(InvalidRequest, match=field):
                client.generate(replace(GenerateRequest(PROMPT), **{field: value}))

    run(body)


def test_a_row_that_cannot_start_fails_alone() -> None:
    from worker_fakes import Request, new_driver

    for bad in ({"logprobs": 3_000_000_000}, {"sampling": replace_top_k(1 << 40)}):
        driver = new_driver()
        driver.add(1, Request([1, 2, 3], 4, **bad))
        driver.add(2, Request([1, 2, 3], 4))
        ends = driver.finish(lambda: 5)
        assert ends[1].end is not None and ends[1].end.reason == "error"
        assert ends[2].end is not None and ends[2].end.reason != "error"


def replace_top_k(top_k: int) -> Any:
    from ramet.runtime.protocol.messages import Sampling

    return Sampling(temperature=1.0, top_k=top_k)


# ---------------------------------------------------------------- frames


def test_a_message_without_encoding_fails_alone(tmp_path: Path) -> None:
    async def body() -> None:
        async with scene(tmp_path) as (client, _):
            good = [client.generate(GenerateRequest(PROMPT, max_tokens=2)) for _ in range(2)]
            bad = client.generate(GenerateRequest(PROMPT, max_tokens=2, namespace=Namespace(salt="\ud800")))
            score = asyncio.ensure_future(client.score(ScoreRequest(PROMPT, [[1]], namespace=Namespace("\ud800"))))
            good += [client.generate(GenerateRequest(PROMPT, max_tokens=2)) for _ in range(2)]
            for generation in good:
                assert (await generation.result())[0].finish_reason == "length"
            with pytest.raises(InvalidRequest, match="cannot be sent"):
                await bad.result()
            with pytest.raises(InvalidRequest, match="cannot be sent"):
                await score
            assert client.open_requests == 0

    run(body)


def test_frames_are_split_and_keep_their_order() -> None:
    decoder: FrameDecoder[Any] = FrameDecoder(ToScheduler)
    messages = [Cancel(i) for i in range(100)]
    frames = list(encode_frames(3, messages, 200))
    assert len(frames) > 4 and max(len(body) for _, body in frames) <= 200
    assert [one for frame in frames for one in decoder.decode(frame)[1]] == messages
    assert {decoder.decode(frame)[0] for frame in frames} == {3}
    assert list(encode_frames(3, messages)) == [encode_frame(3, messages)]
    assert len(list(encode_frames(3, messages, 1))) == 100, "a long message goes alone"


def test_a_message_that_no_frame_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGE", 600)
    frames = transport.encode_frames
    monkeypatch.setattr(link_module, "encode_frames", lambda epoch, messages: frames(epoch, messages, 500))
    with pytest.raises(MessageTooLarge, match="at most 600"):
        list(encode_frames(1, [Hello(1, "x" * 1000, 1)], 500))  # type: ignore[arg-type]

    async def body() -> None:
        async with scene(tmp_path) as (client, _):
            good = [client.generate(GenerateRequest(PROMPT, max_tokens=2)) for _ in range(9)]
            bad = client.generate(GenerateRequest([1] * 400, max_tokens=2))
            with pytest.raises(InvalidRequest, match="at most 600"):
                await bad.result()
            for generation in good:
                assert (await generation.result())[0].finish_reason == "length"

    run(body)
