"""Ten thousand programs at once in a process of their own: prints what they cost as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ramet.frontend_lang.fake import FakeBackend

import ramet as rt


@rt.function
async def asynchronous(s: rt.AsyncState, topic: str) -> str:
    s += f"About {topic}: " + rt.gen("a", max_tokens=8)
    first = await s["a"]
    s += f" ({first}) " + rt.gen("b", max_tokens=8)
    return str(await s["b"])


@rt.function
def compiled(s: rt.State, topic: str) -> str:
    s += f"About {topic}: " + rt.gen("a", max_tokens=8)
    s += f" ({s['a']}) " + rt.gen("b", max_tokens=8)
    return str(s["b"])


def resident() -> float:
    """MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


class Peak(threading.Thread):
    """The most threads and memory that were seen."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done = False
        self.threads, self.memory = 0, 0.0
        self.start()

    def run(self) -> None:
        while not self.done:
            self.threads = max(self.threads, threading.active_count() - 1)  # this one watches only
            self.memory = max(self.memory, resident())
            time.sleep(0.02)


class Counted(list[Any]):
    """Requests are counted here, not kept: what the test backend remembers is not what a run costs."""

    count = 0

    def append(self, item: Any) -> None:
        self.count += 1

    def __len__(self) -> int:
        return self.count


class Lockstep(FakeBackend):
    """No call ends before all programs have one open."""

    def __init__(self, programs: int) -> None:
        super().__init__(lambda prompt, call: "an answer", chunk=100)
        self.requests = Counted()
        self._programs, self._waiting = programs, 0
        self.most_open = 0
        self._gate: asyncio.Future[None] | None = None

    async def pause(self) -> None:
        if self._gate is None:
            self._gate = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self.most_open = max(self.most_open, self.running)  # here and not from a watcher, who may look too late
        gate = self._gate
        if self._waiting == self._programs:
            self._waiting, self._gate = 0, None
            gate.set_result(None)
        await gate


def main(kind: str, count: int) -> None:
    backend = Lockstep(count)
    before = resident()
    peak = Peak()
    program: rt.Function[str] = asynchronous if kind == "async" else compiled
    options: dict[str, Any] = {"compile": True} if kind == "compiled" else {}
    items = ((f"t{i}",) for i in range(count))
    states = list(program.run_batch(items, num_threads=count, backend=backend, **options))
    peak.done = True
    assert all(state.error() is None and state.result() == "an answe" for state in states)
    memory = peak.memory - before
    print(json.dumps({"threads": peak.threads, "open": backend.most_open, "memory": memory, "kept": len(backend.kept)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
