"""Compiling under limits of time and memory, in a child process that can be killed.

A child lives on from compile to compile; one that overruns a limit or dies is replaced. The four ways to fail are kept
apart: invalid / unsupported (the child's own verdict), too complex (a bound of the compiler, or memory), timed out,
crashed.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
from ramet.runtime.constrain.child import Definition, Verdict
from ramet.runtime.constrain.ready import KIND
from ramet.runtime.constrain.vocabulary import TokenizerLike
from ramet.runtime.protocol.errors import (
    ConstraintCrashed,
    ConstraintError,
    ConstraintTimeout,
    ConstraintTooComplex,
    InvalidConstraint,
    UnsupportedConstraint,
)
from ramet.runtime.protocol.messages import ConstraintSpec
from ramet.runtime.store import default_cache

SECONDS = 2.0
MEGABYTES = 256
START_SECONDS = 60.0
"""For a child to come up: it reads the whole vocabulary."""

LOOK_EVERY = 0.02
"""Seconds between two looks at a child's memory."""

HEADROOM = 4
"""The child's own limit of address space is this many times the limit of resident memory, a last resort."""


class BoundedCompiler:
    """Says whether a specification compiles. May be used by several threads; ``children`` compiles run at once."""

    def __init__(
        self,
        tokenizer: TokenizerLike,
        *,
        seconds: float = SECONDS,
        megabytes: int = MEGABYTES,
        children: int = 2,
    ) -> None:
        definition = Definition(
            tokenizer.definition,
            tokenizer.vocab_size,
            tuple(tokenizer.end_ids),
            tokenizer.fingerprint,
            list(tokenizer.token_table),
            HEADROOM * megabytes * 1024 * 1024,
            str(default_cache().parent / "tables"),
        )
        self._hello = _frame(definition)
        self._seconds = seconds
        self._memory = megabytes * 1024 * 1024
        self._idle: list[_Child] = []
        self._live: set[_Child] = set()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._starting = 0
        """Children that start and belong to nobody yet."""
        self._places = threading.BoundedSemaphore(children)
        self._closed = False

    def check(self, spec: ConstraintSpec) -> ConstraintSpec:
        """Blocks until the verdict: the specification, lowered, for a worker. Raises the ConstraintError of ``spec``,
        if it has one."""
        with self._child() as child:
            verdict = child.ask(spec, self._seconds, self._memory)
        raise_verdict(verdict)
        return ConstraintSpec(KIND, verdict.ready)

    def warm(self) -> None:
        """Start a child, so that the first check does not wait for it."""
        with self._changed:
            self._starting += 1
        self._add_spare()

    def close(self) -> None:
        """Ends the children, also those that start or compile just now: whoever waits for one learns it at once."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for child in self._live:
                child.interrupt()
        for child in idle:
            child.kill()

    @contextlib.contextmanager
    def _child(self) -> Iterator[_Child]:
        with self._places:
            with self._changed:
                while self._starting and not self._idle:
                    self._changed.wait()  # sooner done than one more is there
                child = self._idle.pop() if self._idle else None
            if child is not None and not child.alive:  # something else has ended it while it was idle
                with self._lock:
                    self._live.discard(child)
                child.kill()
                child = None
            if child is None:
                child = self._start()
            try:
                yield child
            finally:
                with self._lock:
                    keep = child.alive and not self._closed
                    if keep:
                        self._idle.append(child)
                    else:
                        self._live.discard(child)
                if not keep:
                    child.kill()
                    self._replace()

    def _start(self) -> _Child:
        child = _Child()
        try:
            with self._lock:
                if self._closed:
                    raise ConstraintCrashed("the compiler of constraints is closed")
                self._live.add(child)
            child.greet(self._hello)
        except BaseException:
            with self._lock:
                self._live.discard(child)
            child.kill()
            raise
        return child

    def _replace(self) -> None:
        """Start another child for the next check, which then does not wait for it as long."""
        with self._changed:
            if self._closed:
                return
            self._starting += 1
        threading.Thread(target=self._add_spare, daemon=True).start()

    def _add_spare(self) -> None:
        """The child that ``_starting`` counts already. One that does not start is the error of the next check."""
        child: _Child | None = None
        with contextlib.suppress(ConstraintCrashed, OSError):
            child = self._start()
        with self._changed:
            self._starting -= 1
            if child is not None and not self._closed:
                self._idle.append(child)
                child = None
            self._changed.notify_all()
        if child is not None:
            child.kill()


def raise_verdict(verdict: Verdict) -> None:
    """The error that a verdict stands for."""
    if not verdict.kind:
        return
    if verdict.kind == "unsupported":
        raise UnsupportedConstraint(verdict.message, keyword=verdict.keyword, pointer=verdict.pointer)
    kinds: dict[str, type[ConstraintError]] = {
        "too_complex": ConstraintTooComplex,
        "timed_out": ConstraintTimeout,
        "crashed": ConstraintCrashed,
    }
    raise kinds.get(verdict.kind, InvalidConstraint)(verdict.message)


def _frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "little") + body


class _Child:
    """One process. Dead after any failure."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ramet.runtime.constrain.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._killed = False
        self._base = 0

    @property
    def alive(self) -> bool:
        """False also where something else has ended it."""
        return not self._killed and self._process.poll() is None

    def greet(self, hello: bytes) -> None:
        """Wait until it has read the vocabulary. Raises ConstraintCrashed."""
        verdict = self._exchange(hello, START_SECONDS, None)
        if verdict.kind:
            raise ConstraintCrashed(f"the process that compiles constraints did not start: {verdict.message}")
        self._base = self._resident()

    def ask(self, spec: ConstraintSpec, seconds: float, memory: int) -> Verdict:
        return self._exchange(_frame(spec), seconds, memory)

    def interrupt(self) -> None:
        """From any thread: whoever waits for the child sees it die."""
        self._process.kill()

    def kill(self) -> None:
        self._killed = True
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _exchange(self, frame: bytes, seconds: float, memory: int | None) -> Verdict:
        """Send, and wait for the answer within the limits; a child that breaks them is killed."""
        writer = threading.Thread(target=self._send, args=(frame,), daemon=True)
        writer.start()
        end = time.monotonic() + seconds
        answer = b""
        wanted = 4
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        while len(answer) < wanted:
            left = end - time.monotonic()
            if left <= 0:
                self.kill()
                return Verdict("timed_out", f"the constraint did not compile within {seconds:g} s")
            if select.select([stream], [], [], min(left, LOOK_EVERY))[0]:
                chunk = os.read(stream, 65536)
                if not chunk:
                    self.kill()
                    code = self._process.returncode
                    return Verdict("crashed", f"the process that compiled the constraint died (exit code {code})")
                answer += chunk
                if len(answer) >= 4:
                    wanted = 4 + int.from_bytes(answer[:4], "little")
            elif memory is not None and self._resident() - self._base > memory:
                self.kill()
                limit = memory // (1024 * 1024)
                return Verdict("too_complex", f"the constraint needs more than {limit} MB to compile")
        return msgspec.msgpack.decode(answer[4:], type=Verdict)

    def _send(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frame)
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError, OSError):
            return

    def _resident(self) -> int:
        """Bytes in memory; 0 where the system does not say."""
        try:
            with open(f"/proc/{self._process.pid}/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        except (OSError, ValueError, IndexError):
            return 0
