"""The bench: workloads of exact sizes, a client that reads streams however they are cut, figures that add up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import psutil
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.runtime import store
from ramet.runtime.frontend.client import Client
from ramet.runtime.frontend.http import create_app
from ramet.runtime.launch import Launcher
from ramet.runtime.protocol.config import RuntimeConfig, WorkerConfig
from ramet.runtime.protocol.errors import InvalidRequest, RametError
from ramet.runtime.tokenizer import Tokenizer

from ramet.bench import floor as floors
from ramet.bench import machine, plot, replay, report, results, watch, weights
from ramet.bench.client import Address, _Chunks, stream
from ramet.bench.records import is_valid
from ramet.bench.targets import connect, parse_serve, parse_url, served
from ramet.bench.text import words
from ramet.bench.workloads import NAMES, SCHEMA, Workload, build, salt
from ramet.cli import main


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


@pytest.fixture(scope="module")
def made(tokenizer: Tokenizer) -> dict[str, Workload]:
    return build(tokenizer)


# ---- workloads


def test_workloads_have_the_sizes_they_are_named_by(tokenizer: Tokenizer, made: dict[str, Workload]) -> None:
    def sizes(name: str) -> list[int]:
        return [len(tokenizer.encode(session.turns[0])) for session in made[name].sessions]

    assert sizes("W1") == [64] * 4 and made["W1"].max_tokens == 128 and made["W1"].concurrency == 1
    assert sizes("W2") == [128] * 16 and made["W2"].max_tokens == 64 and made["W2"].concurrency == 16
    assert sizes("W3") == [1530] * 64 and made["W3"].max_tokens == 16 and made["W3"].concurrency == 16
    assert sizes("W5") == [1000] * 16 and made["W5"].max_tokens == 16 and made["W5"].concurrency == 16
    assert sizes("W6") == [40] * 32 and made["W6"].max_tokens == 128 and not made["W6"].ignore_eos
    assert made["W4"].requests == 48 and len(made["W4"].sessions) == 8 and made["W4"].max_tokens == 32
    assert {len(tokenizer.encode(session.system)) for session in made["W6"].sessions} == {400}


@pytest.mark.parametrize(("name", "groups"), [("W3", [(1500, 1)]), ("W5", [(800, 1), (950, 4)]), ("W2", [(1, 16)])])
def test_prompts_share_what_is_promised(
    tokenizer: Tokenizer, made: dict[str, Workload], name: str, groups: list[tuple[int, int]]
) -> None:
    ids = [tokenizer.encode(salt(random.Random(1)) + session.turns[0]) for session in made[name].sessions]
    start = len(tokenizer.encode(salt(random.Random(1))))
    for length, distinct in groups:
        heads = {tuple(one[: start + length]) for one in ids}
        assert len(heads) == distinct or (name == "W2" and len(heads) > 8)
    assert len({tuple(one) for one in ids}) == len(ids)


def test_workloads_are_made_alike_each_time(tokenizer: Tokenizer, made: dict[str, Workload]) -> None:
    again = build(tokenizer, ("W2", "W5"))
    assert list(again) == ["W2", "W5"]
    assert all(again[name].digest == made[name].digest for name in again)


def test_salts_are_fresh_and_of_one_size(tokenizer: Tokenizer) -> None:
    draw = random.Random(7)
    drawn = [salt(draw) for _ in range(50)]
    assert len(set(drawn)) == 50
    assert len({len(tokenizer.encode(one)) for one in drawn}) == 1


def test_a_machine_without_packages_gets_our_own_text(tokenizer: Tokenizer) -> None:
    text = words(20_000, found=[])
    assert len(text) >= 20_000 and text == words(20_000, found=[])
    assert text[:400] != text[900:1300], "later laps are in another order"


# ---- records of W6

_RECORD: dict[str, Any] = {
    "subject": "a bridge",
    "tone": "plain",
    "clarity": 4,
    "names_a_person": False,
    "share_of_prose": 0.5,
    "keywords": ["bridge"],
}
_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 7),
    st.sampled_from([4.0, 2.5, "plain", "legal", "x" * 49, "ab", "", [], ["ab"], ["a"], ["ab"] * 4, [1], {}]),
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from([*_RECORD, "more"]), _ODD, max_size=2), st.sets(st.sampled_from([*_RECORD])))
def test_the_check_by_hand_agrees_with_a_schema_validator(changes: dict[str, Any], without: set[str]) -> None:
    record = {key: value for key, value in _RECORD.items() if key not in without or len(without) > 1} | changes
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert is_valid(json.dumps(record)) == validator.is_valid(record)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", json.dumps(_RECORD)[:-1], json.dumps(_RECORD) + "}"])
def test_what_is_not_an_object_is_not_valid(text: str) -> None:
    assert is_valid(json.dumps(_RECORD)) and not is_valid(text)


# ---- client


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(min_size=1, max_size=20), max_size=6), st.lists(st.integers(0, 300), max_size=12))
def test_chunked_bodies_are_read_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    edges = sorted({0, len(framed), *(cut for cut in cuts if cut < len(framed))})
    reader = _Chunks()
    got = b"".join(piece for a, b in itertools.pairwise(edges) for piece in reader.feed(framed[a:b]))
    assert got == b"".join(parts)


@dataclass
class Fake:
    """A small server: streams ``new`` pieces per request (None: as many as were asked for), ``cut`` bytes at a time."""

    new: int | None = None
    cut: int = 7
    status: int = 200
    fail_after: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        if head.startswith("GET"):
            data = json.dumps({"object": "list", "data": [{"id": "fake-model", "object": "model"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(data), data))
        else:
            length = int(next(line for line in head.lower().split("\r\n") if "content-length" in line).split(":")[1])
            body = json.loads(await reader.readexactly(length))
            self.bodies.append(body)
            self.paths.append(path)
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
            await asyncio.sleep(0.01)
            await self.send(writer, body)
            self.open_now -= 1
        writer.close()

    async def send(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        if self.status != 200:
            writer.write(b"HTTP/1.1 %d No\r\nConnection: close\r\n\r\nthe queue is full" % self.status)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        raw = b"".join(self.frames(body))
        for at in range(0, len(raw), self.cut):
            writer.write(raw[at : at + self.cut])
            if self.cut < 100 and at % (40 * self.cut) == 0:
                await writer.drain()

    def frames(self, body: dict[str, Any]) -> Iterator[bytes]:
        chat = "messages" in body
        count = body["max_tokens"] if self.new is None else self.new
        pieces = [f" w{i}" for i in range(count)]
        if "response_format" in body:
            pieces = [json.dumps(_RECORD)]
        events: list[Any] = [
            {"choices": [{"index": 0, "delta": {"content": piece}} if chat else {"index": 0, "text": piece}]}
            for piece in pieces
        ]
        events.append({"choices": [{"index": 0, "finish_reason": "length", "text": ""}]})
        if self.fail_after is not None:
            events[self.fail_after :] = [{"error": {"message": "it fell over"}}]
        else:
            usage = {
                "prompt_tokens": 100,
                "completion_tokens": count,
                "prompt_tokens_details": {"cached_tokens": 25},
            }
            events.append({"choices": [], "usage": usage})
        for event in [*events, None]:
            data = b"data: %s\n\n" % (b"[DONE]" if event is None else json.dumps(event).encode())
            yield b"%x\r\n%s\r\n" % (len(data), data)
        yield b"0\r\n\r\n"


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def listen() -> None:
        listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()

    def serve() -> None:
        loop.run_until_complete(listen())
        loop.run_forever()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(5)
    yield server
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_the_server_is_asked_as_the_workload_says(fake: Fake, made: dict[str, Workload]) -> None:
    target = connect("fake", fake.url + "/v1")
    assert target.model == "fake-model" and target.pid == os.getpid()
    done = replay.replay(target, made["W2"], "#salt\n", 10)
    assert fake.most_open == 16 and set(fake.paths) == {"/v1/completions"} and len(fake.bodies) == 16
    for body in fake.bodies:
        assert body["ignore_eos"] and body["stream"] and body["temperature"] == 0 and body["max_tokens"] == 64
        assert body["prompt"].startswith("#salt\n") and body["stream_options"] == {"include_usage": True}
    run = done.run
    assert (run.requests, run.errors, run.new_tokens, run.prompt_tokens) == (16, 0, 16 * 64, 1600)
    assert run.cached_tokens == 16 * 25 and run.valid is None
    assert set(done.texts) == {"".join(f" w{i}" for i in range(64))}


def test_chats_send_their_history_again(fake: Fake, made: dict[str, Workload]) -> None:
    replay.replay(connect("fake", fake.url), made["W4"], "#salt\n", 10)
    assert set(fake.paths) == {"/v1/chat/completions"} and len(fake.bodies) == 48 and fake.most_open == 8
    longest = max(fake.bodies, key=lambda body: len(body["messages"]))["messages"]
    assert [message["role"] for message in longest] == ["system"] + ["user", "assistant"] * 5 + ["user"]
    assert longest[0]["content"].startswith("#salt\n")
    assert longest[2]["content"] == "".join(f" w{i}" for i in range(32))


def test_records_are_counted_where_there_is_a_schema(fake: Fake, made: dict[str, Workload]) -> None:
    fake.cut = 10_000
    run = replay.replay(connect("fake", fake.url), made["W6"], "", 10).run
    assert run.valid == run.requests == 32 and run.errors == 0 and run.cut == 32
    assert fake.bodies[0]["response_format"]["json_schema"]["schema"] == SCHEMA
    assert "ignore_eos" not in fake.bodies[0]


def test_a_server_that_stops_early_is_no_fast_server(fake: Fake, made: dict[str, Workload]) -> None:
    fake.new = 3
    run = replay.replay(connect("fake", fake.url), made["W1"], "", 10).run
    assert run.errors == 4 and "3 new tokens instead of 128" in run.first_error


@pytest.mark.parametrize(("trouble", "said"), [({"status": 503}, "HTTP 503"), ({"fail_after": 2}, "it fell over")])
def test_errors_are_counted_with_what_the_server_said(
    fake: Fake, made: dict[str, Workload], trouble: dict[str, int], said: str
) -> None:
    for name, value in trouble.items():
        setattr(fake, name, value)
    target = connect("fake", fake.url)
    run = replay.replay(target, made["W1"], "", 10).run
    assert run.errors == 4 and said in run.first_error
    with pytest.raises(RametError, match=said):
        replay.warm_up(target, 10)


def test_a_server_that_hangs_or_is_gone_is_an_error_of_the_request() -> None:
    async def ask(port: int) -> str:
        return (await stream(Address("127.0.0.1", port), "/v1/completions", b"{}", 0.3)).error

    async def both() -> tuple[str, str]:
        server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        hung = await ask(port)
        server.close()
        await server.wait_closed()
        return hung, await ask(port)

    hung, gone = asyncio.run(both())
    assert "no end after 0.3 s" in hung and "Refused" in gone


# ---- watching


def test_cpu_time_of_a_tree_is_seen() -> None:
    with watch.Watch(os.getpid(), every_s=0.05) as watched:
        until = time.process_time() + 0.15
        while time.process_time() < until:
            pass
    usage = watched.usage
    assert usage.cpu_s is not None and usage.cpu_s >= 0.1
    assert usage.peak_pss is not None and usage.peak_pss > 1 << 20


def test_without_a_pid_nothing_is_claimed() -> None:
    with watch.Watch(None) as watched:
        pass
    assert watched.usage.cpu_s is None and watched.usage.peak_pss is None and watched.usage.other_cpu_s is None


# ---- floors


@pytest.fixture(scope="module")
def model(model_dir: Path, tokenizer: Tokenizer) -> floors.Model:
    folder = store.open(model_dir)
    return floors.Model(folder.meta, tokenizer, weights.look(folder))


def test_weights_of_the_default_model_are_counted(model: floors.Model) -> None:
    assert 96e6 < model.weights.bytes_per_step < 97e6
    assert model.weights.head_elements == 49152 * 576
    assert 134.4e6 < model.weights.layer_elements + model.weights.head_elements < 134.6e6
    assert model.weights.quantised and model.kv_bytes == 23040


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.integers(0, 2), max_size=8).map(tuple), min_size=1, max_size=8))
def test_a_prefix_tree_has_one_node_per_distinct_prefix(prompts: list[tuple[int, ...]]) -> None:
    nodes = {ids[:end] for ids in prompts for end in range(1, len(ids) + 1)}
    assert floors._distinct(prompts) == (len(nodes), sum(map(len, nodes)))


def test_floors_count_what_is_distinct(model: floors.Model, made: dict[str, Workload]) -> None:
    found = {name: floors.floor(model, made[name]) for name in NAMES}
    start = len(model.tokenizer.encode("#1234567\n"))
    assert found["W1"].prefill_tokens == start + 4 * 64 and found["W1"].steps == 4 * 127
    assert found["W1"].weight_bytes == 4 * 127 * model.weights.bytes_per_step
    assert found["W3"].prompt_tokens == 64 * (start + 1530)
    assert start + 1500 < found["W3"].prefill_tokens <= start + 1500 + 64 * 30
    assert (found["W3"].steps, found["W3"].rows) == (4 * 15, 16)
    assert (found["W4"].steps, found["W4"].rows) == (6 * 31, 8)
    assert found["W4"].prefill_tokens < 8 * (72 + 6 * 20 + 120), "answers of former turns are not computed again"
    assert found["W5"].prefill_tokens <= start + 800 + 4 * 150 + 16 * 50


def test_times_follow_the_rates(model: floors.Model, made: dict[str, Workload]) -> None:
    slow = results.Rates(
        cores=2,
        read_large=(10.0, 20.0, 30.0),
        large_bytes=1 << 30,
        read_small=(20.0, 30.0, 60.0),
        small_bytes=1 << 27,
        bf16_gflops=400.0,
        int8_gops=800.0,
    )
    timed = floors.floor(model, made["W1"], slow)
    assert timed.memory_s == pytest.approx((timed.weight_bytes + timed.kv_bytes) / 30e9)
    assert timed.prefill_s and timed.compute_s and timed.total_s
    assert timed.total_s >= timed.prefill_s + max(timed.memory_s or 0, timed.compute_s) - 1e-9
    shorter = floors.floor(model, made["W6"], slow, new_tokens=30)
    assert shorter.steps == 2 * 29 and (shorter.total_s or 0) < (floors.floor(model, made["W6"], slow).total_s or 0)


def test_reading_is_timed_over_all_of_the_buffer() -> None:
    rates = machine.read_rates(np.ones(1 << 18, np.int64), threads=2, passes=3)
    assert len(rates) == 3 and all(rate > 0 for rate in rates)


# ---- the command


def _last(text: str) -> Any:
    return json.loads(text.strip().splitlines()[-1])


def test_targets_alternate_and_the_report_can_be_read_again(
    fake: Fake, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.cut = 10_000
    words_ = ["bench", "--url", f"one={fake.url}", "--url", f"two={fake.url}", "--workload", "W1,W2", "--reps", "2"]
    assert main([*words_, "--model", str(model_dir), "--seed", "5", "--json"]) == 0
    printed = capsys.readouterr()
    told = _last(printed.out)
    assert [line.split(":")[0] for line in printed.err.splitlines() if line.startswith("W1")] == [
        "W1 1/2 one",
        "W1 1/2 two",
        "W1 2/2 one",
        "W1 2/2 two",
    ]
    assert {(each["workload"], each["target"]) for each in told["series"]} == {
        (workload, target) for workload in ("W1", "W2") for target in ("one", "two")
    }
    prompts = [body["prompt"] for body in fake.bodies if body["max_tokens"] == 128]
    salts = [prompt.split("\n")[0] for prompt in prompts]
    assert salts[:4] == salts[4:8] != salts[8:12], "a salt is fresh in each repetition, and the same for all targets"
    assert "two" in printed.out and "8/8" in printed.out and "25 %" in printed.out

    saved = tmp_path / "bench.json"
    saved.write_text(printed.out)
    assert main(["bench", "--measured", str(saved)]) == 0
    again = capsys.readouterr().out
    assert again.strip() and printed.out.startswith(again.strip())


def test_a_run_with_errors_fails(fake: Fake, model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", fake.url, "--workload", "W1", "--reps", "1", "--model", str(model_dir)]) == 0
    fake.new = 8  # what warming up asks for, so that it passes
    assert main(["bench", "--url", fake.url, "--workload", "W1", "--reps", "1", "--model", str(model_dir)]) == 1
    assert "8 new tokens instead of 128" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "nothing to measure"),
        (["--url", "https://127.0.0.1"], "http://127.0.0.1:8000"),
        (["--url", "a=http://127.0.0.1:1"], "a: .*start that server first"),
        (["--serve", "--workload", "W9"], "W9.*W1, W2"),
        (["--measured", "nowhere.json"], "nowhere.json"),
        (["--measured", "nowhere.json", "--serve"], "leave out"),
        (["--url", "a=http://127.0.0.1:1", "--url", "a=http://127.0.0.1:2"], "two targets are called 'a'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], said: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--model", str(model_dir), *options]) == 1
    assert re.search(said, capsys.readouterr().err)


def test_names_of_targets() -> None:
    assert parse_url("vllm=http://127.0.0.1:8001") == ("vllm", "http://127.0.0.1:8001")
    assert parse_url("http://127.0.0.1:8001/v1?a=b") == ("127.0.0.1:8001", "http://127.0.0.1:8001/v1?a=b")
    assert parse_serve("", 0) == ("ramet", []) and parse_serve("--threads 1", 1) == ("ramet-2", ["--threads", "1"])
    assert parse_serve("int8=--kv-dtype=int8 --threads 2", 0) == ("int8", ["--kv-dtype=int8", "--threads", "2"])
    with pytest.raises(InvalidRequest):
        parse_serve("x='", 0)


def _report() -> results.Report:
    run = results.Run(wall_s=2.0, requests=4, errors=0, prompt_tokens=8, new_tokens=10, itl_ms=4.0)
    return results.Report(
        version="1",
        time="",
        machine="a machine",
        model="a model",
        weight_bytes=96_000_000,
        seed=1,
        repetitions=2,
        targets=(results.TargetInfo("a", "", ""), results.TargetInfo("b", "", "")),
        workloads=(results.WorkloadInfo("W1", "one", 4, 128, ""),),
        series=tuple(results.Series("W1", name, (run, run)) for name in "ab"),
        rates=results.Rates(
            cores=2, read_large=(30, 40, 50), large_bytes=1 << 30, read_small=(40, 60, 70), small_bytes=96 << 20
        ),
    )


def test_decoding_is_set_beside_the_bandwidth() -> None:
    (line, _) = report.decoding(_report())
    assert "24.0 GB/s, 60 % of the read bandwidth (40 %" in line  # 96 MB every 4 ms


def test_a_saved_report_of_another_model_gets_no_floors(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "bench.json"
    saved.write_bytes(msgspec.json.encode(_report()))
    assert main(["bench", "floor", "--measured", str(saved), "--model", str(model_dir)]) == 1
    assert "a model" in capsys.readouterr().err


def test_medians_need_all_their_values() -> None:
    assert results.middle([3.0, 1.0, 2.0]) == 2.0
    assert results.middle([1.0, None]) is None and results.middle([]) is None
    assert results.percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5 and results.percentile([], 99) is None


def test_a_plot_needs_matplotlib_and_says_so(tmp_path: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(InvalidRequest, match="pip install matplotlib"):
            plot.check(tmp_path / "a.png")
        return
    plot.check(tmp_path / "a.png")
    plot.draw(_report(), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidRequest, match=r"\.png"):
        plot.check(tmp_path / "a.txt")


# ---- a server of our own


_NO_WEIGHTS = weights.Weights(bytes_per_step=0, layer_elements=0, head_elements=0, quantised=True)


@contextlib.contextmanager
def oracle_server(model_dir: Path) -> Iterator[str]:
    folder, loaded = store.open(model_dir), Tokenizer.load(model_dir)
    config = RuntimeConfig(
        str(model_dir), "", worker=WorkerConfig(kernels="oracle", oracle_vocab=loaded.vocab_size, kv_tokens=32768)
    )
    with Launcher(config) as launcher, contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        app = create_app(Client(launcher.config.frontend_endpoint, loaded), folder, tokenizer=loaded)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until = time.monotonic() + 60
            while not server.started and time.monotonic() < until:
                time.sleep(0.02)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.mark.slow
def test_workloads_run_on_the_oracle(model_dir: Path, tokenizer: Tokenizer, made: dict[str, Workload]) -> None:
    """Real scheduler, HTTP and tokeniser; only the model is none. What is shared is computed once."""
    with oracle_server(model_dir) as url:
        target = connect("oracle", url)
        replay.warm_up(target, 30)
        for name in ("W3", "W5"):
            run = replay.replay(target, made[name], salt(random.Random()), 60).run
            assert run.errors == 0, run.first_error
            assert run.new_tokens == made[name].requests * 16
            least = floors.floor(floors.Model(store.open(model_dir).meta, tokenizer, _NO_WEIGHTS), made[name])
            assert run.cached_tokens is not None and run.prompt_tokens == least.prompt_tokens
            computed = run.prompt_tokens - run.cached_tokens
            # Of the salt, what it has in common with those before may be cached already.
            assert least.prefill_tokens - 9 <= computed < 1.5 * least.prefill_tokens


@pytest.mark.slow
def test_serve_is_started_and_ended(model_dir: Path) -> None:
    with served("tiny", ["--kv-tokens", "2048", "--context", "1024"], model=str(model_dir)) as target:
        assert target.pid is not None and len(watch.tree(target.pid)) >= 3
        replay.warm_up(target, 60)
    assert not psutil.pid_exists(target.pid)
    code = (
        "import os, signal, sys; from ramet.bench.targets import served\n"
        "with served('tiny', ['--kv-tokens', '2048'], model=sys.argv[1]) as target:\n"
        "    print(target.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(model_dir)], capture_output=True, text=True)
    until = time.monotonic() + 10
    while psutil.pid_exists(int(killed.stdout)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(killed.stdout)), "the server outlived the bench"
    refused = served("bad", ["--kernels", "none"], model=str(model_dir))
    with pytest.raises(RametError, match=r"did not start(?s:.*)invalid choice"), refused:
        pass
