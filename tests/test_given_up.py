"""When the launcher gives a process up, everything says so at once instead of waiting for it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from folders import write_folder
from ramet.runtime import store
from ramet.runtime.frontend.http import create_app
from ramet.runtime.frontend.requests import GenerateRequest, ScoreRequest
from ramet.runtime.protocol.config import WorkerConfig
from ramet.runtime.protocol.errors import Unavailable

from ramet.session import Session, SessionOptions

ROUTES = [
    ("/v1/completions", {"model": "default", "prompt": "in the"}),
    ("/v1/completions", {"model": "default", "prompt": "in the", "stream": True, "regex": "a+"}),
    ("/v1/chat/completions", {"model": "default", "messages": [{"role": "user", "content": "the"}]}),
    ("/generate", {"text": "in the"}),
]


@pytest.mark.slow
def test_after_a_crash_loop_requests_fail_at_once(tmp_path: Path) -> None:
    write_folder(tmp_path / "tiny")
    model = store.resolve(str(tmp_path / "tiny"), cache=tmp_path / "cache", progress=False)

    async def body() -> None:
        options = SessionOptions(model, worker=WorkerConfig(kv_tokens=1024, threads=1), progress=False)
        async with Session(options) as session:
            app = create_app(session.client, model, tokenizer=session.tokenizer)
            open_one = session.client.generate(GenerateRequest([5, 6], max_tokens=100, ignore_eos=True, keep=True))
            [first] = await open_one.result()
            (tmp_path / "tiny" / "model.safetensors").unlink()
            os.kill(session.launcher.status().children[1].pid, signal.SIGKILL)
            waiting = session.client.generate(GenerateRequest([5, 6], max_tokens=100, ignore_eos=True))
            with pytest.raises(Unavailable, match="worker"):
                await asyncio.wait_for(waiting.result(), 60)
            assert session.launcher.status().state == "failed"
            started = time.monotonic()
            with pytest.raises(Unavailable):
                session.client.generate(GenerateRequest([5], parent=(first.branch, 4)))
            with pytest.raises(Unavailable):
                await session.client.score(ScoreRequest([5], [[6]]))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://ramet") as web:
                for path, fields in ROUTES:
                    reply = await web.post(path, json=fields)
                    error = reply.json()["error"]
                    assert (reply.status_code, error["code"]) == (503, "unavailable"), reply.text
                    assert "worker" in error["message"]
                assert (await web.get("/health")).status_code == 200
                assert (await web.get("/metrics")).status_code == 503
                ready = await web.get("/ready")
                assert ready.status_code == 503 and "worker" in ready.json()["reason"]
            assert time.monotonic() - started < 5

    asyncio.run(body())


@pytest.mark.slow
def test_a_server_ends_with_its_runtime_and_says_why(tmp_path: Path) -> None:
    write_folder(tmp_path / "tiny")
    command = [sys.executable, "-m", "ramet", "serve", "--port", "0", "--kv-tokens", "1024", "--threads", "1"]
    server = subprocess.Popen(
        [*command, "--model", str(tmp_path / "tiny")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert server.stderr is not None
    try:
        while "ramet serves" not in (line := server.stderr.readline()):
            assert line, "it did not start"
        (tmp_path / "tiny" / "model.safetensors").unlink()
        children = psutil.Process(server.pid).children()
        [worker] = [child for child in children if "ramet.runtime.worker" in child.cmdline()]
        worker.kill()
        rest = server.stderr.read()
        assert server.wait(60) == 1
        assert "the worker process ended with exit code 1" in rest and "the worker cannot start" in rest, rest
    finally:
        server.kill()
