"""Options of ``ramet serve`` that change who may ask and what is rendered, on a server of its own."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_http_life import port  # noqa: F401

pytestmark = pytest.mark.slow
BODY: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@contextlib.contextmanager
def serving(port: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:  # noqa: F811
    command = [sys.executable, "-m", "ramet", "serve", "--port", str(port), "--kv-tokens", "4096", *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def client(port: int, process: subprocess.Popen[bytes], scheme: str = "http", **options: Any) -> httpx.Client:  # noqa: F811
    web = httpx.Client(base_url=f"{scheme}://127.0.0.1:{port}", timeout=60, **options)
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if web.get("/ready").status_code == 200:
                return web
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)


def test_keys_origins_and_a_template(port: int, tmp_path: Path) -> None:  # noqa: F811
    keys, template = tmp_path / "keys", tmp_path / "own.jinja"
    keys.write_text("second\nthird\n")
    template.write_text("{% for m in messages %}{{ m.content }}!{% endfor %}")
    options = ["--api-key", "first", "--api-key-file", str(keys), "--chat-template", str(template)]
    with serving(port, *options, "--allowed-origin", "https://a.example") as process:
        web = client(port, process)
        for key, status in (("first", 200), ("second", 200), ("third", 200), ("fourth", 401)):
            headers = {"authorization": f"Bearer {key}", "origin": "https://a.example"}
            reply = web.post("/v1/chat/completions", json=BODY, headers=headers)
            assert reply.status_code == status
            assert reply.headers["access-control-allow-origin"] == "https://a.example"
        headers = {"authorization": "Bearer first"}
        ids = web.post("/tokenize", json=BODY, headers=headers).json()["tokens"]
        assert web.post("/detokenize", json={"tokens": ids}, headers=headers).json()["text"] == "Hi!"
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        allowed = web.options("/v1/chat/completions", headers={"origin": "https://a.example", **asks})
        assert allowed.status_code == 200 and "POST" in allowed.headers["access-control-allow-methods"]
        assert web.options("/v1/chat/completions", headers={"origin": "https://b.example", **asks}).status_code == 400


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_orderly_end(port: int, tmp_path: Path, scheme: str) -> None:  # noqa: F811
    """SIGTERM lets a stream that is under way come to its end, and takes nothing new."""
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    options = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)] if scheme == "https" else []
    with serving(port, *options, "--drain-seconds", "60") as process:
        web = client(port, process, scheme, verify=False)
        body = {"model": "default", "prompt": "Count:", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with web.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"{scheme}://127.0.0.1:{port}/health", verify=False, timeout=5)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
        web.close()  # else TLS waits for our side of the farewell
        ended = threading.Event()
        threading.Thread(target=lambda: (process.wait(), ended.set()), daemon=True).start()
        assert ended.wait(20) and process.returncode in (0, -signal.SIGTERM)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for option in ("--api-key-file", "--chat-template", "--ssl-certfile"):
        command = [sys.executable, "-m", "ramet", "serve", "--port", "0", option, str(tmp_path / "none")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and f"{option}: there is no file" in done.stderr
