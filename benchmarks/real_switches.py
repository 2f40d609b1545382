"""What the scheduler's switches bring on the real model: ``python benchmarks/real_switches.py``.

Scheduler and worker in one process, without sockets, so that what is compared is their work alone. A forked program:
sixteen branches of 40 tokens on a context of 1,500 (and of 300) tokens, 32 generated each, with everything on and with
one part turned off, in turns. A control: sixteen requests that share nothing; printed is the time spent in the tree
beside the whole.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import numpy as np
from ramet.runtime import store
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig, Switches, WorkerConfig
from ramet.runtime.protocol.messages import Drop, Limits, RowStart, Sampling, Submit
from ramet.runtime.scheduler.core import Scheduler
from ramet.runtime.worker.core import WorkerCore
from ramet.runtime.worker.model_runner import ModelRunner, build_model
from tree_share import watch_tree

SWITCHES = {
    "all on": Switches(),
    "no grouping": Switches(grouping=False),
    "no pending": Switches(pending=False),
    "no tree": Switches(tree=False),
}


def run(runner: ModelRunner, prompts: Sequence[np.ndarray], switches: Switches, output: int = 32) -> float:
    """Seconds from the first plan to the last result."""
    config = SchedulerConfig(block_size=runner.block_size, switches=switches)
    scheduler, worker = Scheduler(config), WorkerCore(runner)
    scheduler.reset_device(runner.blocks, runner.block_size, runner.fingerprint, 0.0)
    for number, ids in enumerate(prompts):
        scheduler.submit(b"", Submit(number, ids.tobytes(), len(ids), Sampling(temperature=0.0), Limits(output)), 0.0)
    worker.runner.end_ids = ()  # type: ignore[misc]
    began = time.perf_counter()
    while scheduler.open_requests:
        planned = scheduler.schedule(time.perf_counter())
        assert planned is not None
        before, plan = planned
        for message in before:
            if isinstance(message, RowStart):
                worker.start(message)
            elif isinstance(message, Drop):
                worker.drop(message.row)
        if plan is not None:
            scheduler.apply(worker.step(plan), time.perf_counter())
    seconds = time.perf_counter() - began
    worker.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = store.resolve(arguments.model)
    config = RuntimeConfig(str(folder.path), "", worker=WorkerConfig(kv_tokens=40_000))
    runner, _ = build_model(config)
    dice = np.random.default_rng(0)

    def words(count: int) -> np.ndarray:
        return dice.integers(100, 40_000, count, dtype=np.int32)

    times: dict[str, list[float]] = {}
    for _ in range(arguments.repetitions):
        for length in (1500, 300):
            context = words(length)
            forked = [np.concatenate([context, words(40)]) for _ in range(16)]
            for name, switches in SWITCHES.items():
                times.setdefault(f"{length} shared, {name}", []).append(run(runner, forked, switches))
    watch = watch_tree()
    alone = [run(runner, [words(200) for _ in range(16)], Switches(), 64) for _ in range(arguments.repetitions)]
    result = {
        "forked_s": {name: statistics.median(values) for name, values in times.items()},
        "control_s": sum(alone),
        "tree_s": watch.seconds,
        "tree_share": watch.seconds / sum(alone),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, values in times.items():
        print(f"{name}: {statistics.median(values):.2f} s (of {', '.join(f'{v:.2f}' for v in values)})")
    print(f"nothing shared: {watch.seconds * 1e3:.1f} ms in the tree of {sum(alone):.2f} s: {result['tree_share']:.3%}")


if __name__ == "__main__":
    main()
