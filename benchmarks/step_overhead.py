"""What the worker's Python costs beside the kernels, per decode step.

    python benchmarks/step_overhead.py                # one row, greedy
    python benchmarks/step_overhead.py --rows 16 --profile

A worker's core runs plans as a scheduler would send them, without sockets. ``kernels``: time inside the C++ calls
(forward pass, sampling); the rest is Python. Each step is encoded and decoded as on the wire.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from ramet.kernels.ops import Batch, SampleBatch, SampleResult
from ramet.runtime import store
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig, WorkerConfig
from ramet.runtime.protocol.ids import pack_ids
from ramet.runtime.protocol.messages import Limits, PlanRow, RowStart, Sampling, StepPlan, Stops, ToWorker
from ramet.runtime.worker.core import WorkerCore
from ramet.runtime.worker.model_runner import ModelRunner, build_model

PROMPT, BLOCK = 64, 16
T = TypeVar("T")


class Timed:
    """A runner that notes the time spent in it."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def _timed(self, call: Callable[[], T]) -> T:
        begun = time.perf_counter()
        result = call()
        self.seconds += time.perf_counter() - begun
        return result

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        return self._timed(lambda: self._runner.forward(batch))

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleResult:
        return self._timed(lambda: self._runner.sample(logits, batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--profile", action="store_true", help="which functions the Python time is spent in")
    given = parser.parse_args()
    context = PROMPT + given.steps + 8
    per_row = -(-context // BLOCK)
    config = RuntimeConfig(
        model=str(store.resolve("default", progress=False).path),
        run_dir="",
        scheduler=SchedulerConfig(block_size=BLOCK),
        worker=WorkerConfig(kv_tokens=given.rows * per_row * BLOCK),
    )
    runner, compile_spec = build_model(config)
    timed = Timed(runner)
    core = WorkerCore(timed, compile_spec)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for row in range(given.rows):
        ids = pack_ids(rng.integers(100, 30_000, PROMPT).tolist())
        blocks = tuple(range(row * per_row, (row + 1) * per_row))
        limits = Limits(max_tokens=given.steps + 4)
        core.start(RowStart(row, ids, PROMPT, 0, blocks, Sampling(temperature=0.0), Stops(), limits))
    core.step(StepPlan(0, tuple(PlanRow(row, PROMPT) for row in range(given.rows))))
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[ToWorker])
    profiler = cProfile.Profile()
    wholes, insides = [], []
    if given.profile:
        profiler.enable()
    for step in range(1, given.steps + 1):
        frame = encoder.encode([StepPlan(step, tuple(PlanRow(row, 17) for row in range(given.rows)))])
        timed.seconds = 0.0
        begun = time.perf_counter()
        for plan in decoder.decode(frame):
            assert isinstance(plan, StepPlan)
            encoder.encode([core.step(plan)])
        wholes.append(time.perf_counter() - begun)
        insides.append(timed.seconds)
    profiler.disable()
    core.close()
    rest = [whole - inside for whole, inside in zip(wholes, insides, strict=True)]
    whole = statistics.median(wholes)
    print(
        f"{given.rows} rows: step {1e3 * whole:.2f} ms, kernels {1e3 * statistics.median(insides):.2f} ms, "
        f"Python {1e6 * statistics.median(rest):.0f} us, {100 * statistics.median(rest) / whole:.1f} % of the step"
    )
    if given.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
