"""Life and death of a server (D53): nothing of it is left, whenever and however it is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from live import live_server

pytestmark = pytest.mark.slow
GONE_S = 5.0


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "ramet", "serve", "--port", str(port), "--kv-tokens", "4096"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        for child in descendants(process):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def ready(port: int) -> None:
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                return
        assert time.monotonic() < until, "the server is not ready"
        time.sleep(0.05)


def check_gone(process: subprocess.Popen[bytes], children: list[psutil.Process], port: int) -> None:
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)  # on a machine shared by others, all takes as many times longer
    until = time.monotonic() + GONE_S * max(1.0, busy)
    while process.poll() is None or any(child.is_running() and child.status() != "zombie" for child in children):
        assert time.monotonic() < until, [process.poll(), [child for child in children if child.is_running()]]
        time.sleep(0.05)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def load(port: int, stop: threading.Event) -> None:
    body = {"model": "default", "prompt": "Count:", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60) as reply,
    ):
        for _ in reply.iter_raw():
            if stop.is_set():
                return


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_d53_ended_under_load_and_started_again(model_dir: Path, port: int, how: signal.Signals) -> None:
    with serving(port) as process:
        ready(port)
        stop = threading.Event()
        threads = [threading.Thread(target=load, args=(port, stop)) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        children = descendants(process)
        assert len(children) >= 2  # scheduler and worker; the compiler of constraints comes when there is time
        process.send_signal(how)
        check_gone(process, children, port)
        stop.set()
        for thread in threads:
            thread.join()
    if how == signal.SIGINT:
        with serving(port) as process:
            ready(port)
            children = descendants(process)
            process.send_signal(how)
            check_gone(process, children, port)


def test_streams_go_on_when_scheduler_and_worker_are_killed(model_dir: Path) -> None:
    fields = {"max_tokens": 80, "ignore_eos": True, "temperature": 0.8}
    with live_server(model_dir) as live:

        def ask(i: int) -> str:
            events = live.events("/v1/completions", prompt=f"Story number {i}:", seed=i, **fields)
            return "".join(choice["text"] for event in events for choice in event["choices"])

        alone = [ask(i) for i in range(4)]
        before = live.stats()["steps"]
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(ask, i) for i in range(4)]
            for role in ("scheduler", "worker"):
                until = time.monotonic() + 60
                while live.stats()["steps"] < before + 15:
                    assert time.monotonic() < until
                    time.sleep(0.01)
                (child,) = (child for child in live.launcher.status().children if child.role == role)
                psutil.Process(child.pid).kill()
                before = 0 if role == "scheduler" else before
            texts = [stream.result() for stream in streams]
        assert texts == alone
        assert sum(child.restarts for child in live.launcher.status().children) == 2


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_d53_ended_while_the_model_loads(model_dir: Path, port: int, how: signal.Signals) -> None:
    with serving(port) as process:
        until = time.monotonic() + 30
        while len(descendants(process)) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        children = descendants(process)
        process.send_signal(how)
        check_gone(process, children, port)
