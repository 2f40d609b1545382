"""The servers to measure: those that are there, and ``ramet serve`` as a child of our own."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from ramet.bench.client import Address, get
from ramet.bench.replay import Target
from ramet.bench.watch import listener
from ramet.runtime.protocol.errors import InvalidRequest, RametError

_LOCAL = ("127.0.0.1", "localhost", "::1")
_STARTED = re.compile(r"ramet serves .* on (http://\S+)/v1")
_STOP_S = 15.0
_CHILD = """
import sys
from ramet.runtime.protocol.lifeline import end_with_parent
end_with_parent(int(sys.argv[1]))
from ramet.cli import main
sys.exit(main(sys.argv[2:]))
"""


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


def parse_url(text: str) -> tuple[str, str]:
    """NAME=http://... or just the address: (name, address). Raises InvalidRequest."""
    name, found, url = text.partition("=")
    if not found or "/" in name:
        name, url = "", text
    address = Address.of(url)
    return name or f"{address.host}:{address.port}", url


def connect(name: str, url: str, *, model: str = "", pid: int | None = None, flags: str = "") -> Target:
    """A target that answers to /v1/models. ``model`` "": the first that it lists."""
    address = Address.of(url)
    if not model:
        try:
            listed = msgspec.json.decode(asyncio.run(get(address, "/v1/models")), type=_Models).data
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, msgspec.MsgspecError) as error:
            raise InvalidRequest(
                f"{name}: {url}/v1/models cannot be read ({error or type(error).__name__}): start that server first, "
                "or mend --url",
                param="url",
            ) from error
        if not listed:
            raise InvalidRequest(f"{name}: {url} lists no model", param="url")
        model = listed[0].id
    if pid is None and address.host in _LOCAL:
        pid = listener(address.port)
    return Target(name, url, address, model, pid, flags)


def parse_serve(text: str, position: int) -> tuple[str, list[str]]:
    """[NAME=]FLAGS of ``--serve``: (name, flags)."""
    matched = re.match(r"(?P<name>[\w.][\w.-]*)=(?P<flags>.*)", text, re.DOTALL)
    name, flags = (matched["name"], matched["flags"]) if matched else ("", text)
    try:
        return name or ("ramet" if position == 0 else f"ramet-{position + 1}"), shlex.split(flags)
    except ValueError as error:
        raise InvalidRequest(f"--serve {text!r}: {error}", param="serve") from error


@contextlib.contextmanager
def served(name: str, flags: list[str], *, model: str, timeout_s: float = 300.0) -> Iterator[Target]:
    """``ramet serve`` on a free port, ended on exit, and with this process however that ends.

    Raises RametError with its last lines if it does not start."""
    chosen = [] if any(flag.split("=")[0] == "--model" for flag in flags) else ["--model", model]
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(os.getpid()), "serve", "--port", "0", *chosen, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        url = _Lines(process).wait(timeout_s, name)
        yield connect(name, url, pid=process.pid, flags=shlex.join(flags))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Lines:
    """Reads a child's stderr to its end, so that the child never blocks on it; keeps the last lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._last: collections.deque[str] = collections.deque(maxlen=12)
        self._url = ""
        self._known = threading.Event()
        threading.Thread(target=self._read, name="serve-stderr", daemon=True).start()

    def wait(self, timeout_s: float, name: str) -> str:
        until = time.monotonic() + timeout_s
        while not self._known.wait(0.1):
            if self._process.poll() is not None or time.monotonic() > until:
                self._known.wait(1.0)
                break
        if self._url:
            return self._url
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        said = "\n".join(self._last) or "(it said nothing)"
        raise RametError(f"ramet serve for {name} did not start (exit status {self._process.poll()}):\n{said}")

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last.append(line.rstrip())
            started = _STARTED.search(line)
            if started:
                self._url = started[1]
                self._known.set()
        self._known.set()
