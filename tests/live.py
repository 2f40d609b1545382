"""A whole server for a test: scheduler and worker processes on the real model, uvicorn on a thread of this process."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from ramet.runtime import store
from ramet.runtime.frontend.client import Client
from ramet.runtime.frontend.http import create_app
from ramet.runtime.launch import Launcher
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig, WorkerConfig
from ramet.runtime.tokenizer import Tokenizer

END_ID = 2
"""<|im_end|> of the default model."""


@dataclass(frozen=True)
class Live:
    url: str
    web: httpx.Client
    launcher: Launcher
    tokenizer: Tokenizer
    context: int
    port: int

    def post(self, path: str, status: int = 200, **fields: Any) -> Any:
        reply = self.web.post(path, json={"model": "default", **fields})
        assert reply.status_code == status, reply.text
        return reply.json()

    def chat(self, content: str = "Say hello.", status: int = 200, **fields: Any) -> Any:
        fields = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 16, **fields}
        return self.post("/v1/chat/completions", status, **fields)

    def complete(self, prompt: Any, status: int = 200, **fields: Any) -> Any:
        return self.post("/v1/completions", status, **{"prompt": prompt, "temperature": 0, "max_tokens": 16, **fields})

    def force(self, text: str, **fields: Any) -> Any:
        """A completion that can only be ``text``, whatever the model."""
        return self.complete("Write:", regex=re.escape(text), **{"max_tokens": 200, **fields})

    def events(self, path: str, **fields: Any) -> list[Any]:
        """Data of a stream's events, decoded; the last one must be [DONE]."""
        body = {"model": "default", "temperature": 0, **fields, "stream": True}
        with self.web.stream("POST", path, json=body) as reply:
            assert reply.status_code == 200, reply.read()
            raw = b"".join(reply.iter_raw())
        lines = [line for line in raw.split(b"\n") if line]
        assert all(line.startswith(b"data: ") for line in lines)
        assert lines[-1] == b"data: [DONE]"
        return [json.loads(line[6:].decode("utf-8")) for line in lines[:-1]]

    def stats(self) -> Any:
        return self.web.get("/metrics", headers={"accept": "application/json"}).json()

    def idle(self, timeout_s: float = 5.0) -> Any:
        """Stats once nothing runs or waits any more."""
        until = time.monotonic() + timeout_s
        while True:
            stats = self.stats()
            requests = stats["requests"]
            if not requests["running"] + requests["queued"] + requests["waiting"]:
                return stats
            assert time.monotonic() < until, f"not idle after {timeout_s} s: {requests}"
            time.sleep(0.02)

    def check_blocks(self) -> Any:
        """At idle every block is free or evictable; the last step may still hold some for a moment."""
        until = time.monotonic() + 5
        while True:
            blocks = self.idle()["blocks"]
            if blocks["free"] + blocks["evictable"] == blocks["total"]:
                assert blocks["locked"] == blocks["private"] == 0, blocks
                return blocks
            assert time.monotonic() < until, blocks
            time.sleep(0.05)


@contextlib.contextmanager
def live_server(model_dir: Path, *, context: int = 2048, kv_tokens: int = 16384, **scheduler: Any) -> Iterator[Live]:
    """``scheduler``: fields of SchedulerConfig; invariants are checked at each step unless said otherwise."""
    folder = store.open(model_dir)
    tokenizer = Tokenizer.load(folder)
    config = RuntimeConfig(
        str(model_dir),
        "",
        SchedulerConfig(context=context, **{"check_invariants": True, **scheduler}),
        WorkerConfig(kv_tokens=kv_tokens),
    )
    with Launcher(config) as launcher, contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        app = create_app(Client(launcher.config.frontend_endpoint, tokenizer), folder, tokenizer=tokenizer)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{port}"
        try:
            with httpx.Client(base_url=url, timeout=120) as web:
                until = time.monotonic() + 60
                while not server.started and time.monotonic() < until:
                    time.sleep(0.02)
                yield Live(url, web, launcher, tokenizer, context, port)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
