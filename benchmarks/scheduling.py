"""Who waits how long, and what hints bring: ``python benchmarks/scheduling.py``.

The real scheduler and tree before a worker in virtual time (``Speed``: about a model of 135M parameters on two cores).
Three scenes: a cold request in front of a hot stream that saturates the server; two tenants of which one sends a
hundred times as much; a program that says it will fork, and comes back after others have gone through the whole pool.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass, field

from ramet.runtime.protocol.config import SchedulerConfig, Switches
from ramet.runtime.protocol.messages import Finished, Limits, Namespace, Sampling, Submit, TokenDelta
from ramet.runtime.scheduler.core import Scheduler
from ramet.runtime.scheduler.trace import Segment, Vocabulary
from ramet.runtime.scheduler.virtual import Speed, VirtualWorker

CLIENT = b"bench"


@dataclass
class Told:
    """What one request was told, in virtual seconds."""

    sent: float
    first: float = -1.0
    ended: bool = False
    cached: int = 0
    tokens: int = 0


@dataclass
class Drive:
    """A scheduler and its worker, step by step."""

    config: SchedulerConfig
    pool_tokens: int = 40_000
    now: float = 0.0
    told: dict[int, Told] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.config.block_size
        self.scheduler = Scheduler(self.config)
        self.scheduler.reset_device(self.pool_tokens // size, size, "virtual", 0.0)
        self.worker = VirtualWorker(size, Speed(), verify=False)
        self.words = Vocabulary(1 << 12)
        self.numbers = itertools.count()

    def submit(self, *prompt: Segment, output: int = 16, tenant: str = "", fan_out: int = 0) -> int:
        number = next(self.numbers)
        ids = self.words.ids(prompt)
        self.told[number] = Told(self.now)
        sampling = Sampling(key=self.words.base(f"out {number}"))
        message = Submit(
            number, ids, len(ids) // 4, sampling, Limits(output), namespace=Namespace(tenant), fan_out=fan_out
        )
        self.scheduler.submit(CLIENT, message, self.now)
        return number

    def step(self) -> None:
        planned = self.scheduler.schedule(self.now)
        assert planned is not None, "nothing runs"
        before, plan = planned
        self.worker.take(before)
        if plan is None:
            return
        result = self.worker.step(plan)
        self.now += result.seconds
        for _, message in self.scheduler.apply(result, self.now):
            if isinstance(message, TokenDelta):
                told = self.told[message.id]
                told.first = self.now if told.first < 0 else told.first
                told.tokens += len(message.ids) // 4
            elif isinstance(message, Finished):
                told = self.told[message.id]
                told.ended, told.cached = True, message.usage.cached
                told.tokens += message.usage.computed

    def run(self, *requests: int) -> None:
        while not all(self.told[request].ended for request in requests):
            self.step()


def cold_request(order: str, max_overtakes: int) -> dict[str, float]:
    """32 hot requests (1,500 tokens shared, 30 of their own) are queued at any time; one of 500 new tokens comes."""
    switches = Switches(order=order)  # type: ignore[arg-type]
    drive = Drive(SchedulerConfig(max_rows=16, max_overtakes=max_overtakes, switches=switches))
    names = itertools.count()
    waiting: list[int] = []

    def step() -> None:
        waiting[:] = [request for request in waiting if drive.told[request].first < 0]
        while len(waiting) < 32:
            waiting.append(drive.submit(("hot", 1500), (f"own {next(names)}", 30)))
        drive.step()

    for _ in range(100):
        step()
    cold = drive.submit(("cold", 500))
    while drive.told[cold].first < 0:
        step()
    later = [request for request in drive.told if request > cold]
    passed = sum(0 <= drive.told[request].first < drive.told[cold].first for request in later)
    return {"passed": passed, "seconds": drive.told[cold].first - drive.told[cold].sent}


def two_tenants() -> dict[str, float]:
    """Both always have something queued: the hog a hundred times as much. Shares of the computed tokens."""
    drive = Drive(SchedulerConfig(max_rows=16))
    names = itertools.count()

    def send(tenant: str, tokens: int) -> int:
        return drive.submit((f"{tenant} {next(names)}", tokens), output=40, tenant=tenant)

    hog = [send("hog", 100) for _ in range(3000)]
    modest = [send("modest", 200) for _ in range(30)]
    while sum(drive.told[request].first < 0 for request in modest) > 1:
        drive.step()
    done = {"hog": sum(drive.told[r].tokens for r in hog), "modest": sum(drive.told[r].tokens for r in modest)}
    return {name: tokens / sum(done.values()) for name, tokens in done.items()}


def hints(on: bool) -> dict[str, float]:
    """A root of 1,500 tokens says that 8 children follow; before they come, others fill the pool twice."""
    drive = Drive(SchedulerConfig(max_rows=16, switches=Switches(hints=on)), pool_tokens=16_000)
    root: Segment = ("root", 1500)
    drive.run(drive.submit(root, output=1, fan_out=8))
    drive.run(*[drive.submit((f"other {i}", 1000)) for i in range(32)])
    children = [drive.submit(root, (f"child {i}", 40)) for i in range(8)]
    began = drive.now
    drive.run(*children)
    cached = sum(drive.told[child].cached for child in children)
    return {"cached": cached / (8 * 1540), "seconds": drive.now - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cold = {
        f"{order}, max_overtakes {bound}": cold_request(order, bound)
        for order, bound in (("cache-aware", 64), ("cache-aware", 16), ("fcfs", 64))
    }
    tenants, hinted = two_tenants(), {"on": hints(True), "off": hints(False)}
    if arguments.json:
        print(json.dumps({"cold": cold, "tenants": tenants, "hints": hinted}))
        return
    for name, found in cold.items():
        print(f"cold request, {name}: {found['passed']} went ahead, first token after {found['seconds']:.2f} s")
    print("two tenants: " + ", ".join(f"{name} {share:.1%}" for name, share in tenants.items()))
    for name, found in hinted.items():
        print(f"hints {name}: {found['cached']:.1%} of the children's prompts cached, {found['seconds']:.2f} s")


if __name__ == "__main__":
    main()
