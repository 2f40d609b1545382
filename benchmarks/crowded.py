"""Steps with one thread and with all of them while other processes want the cores.

    python benchmarks/crowded.py                      # beside 0, 2 and 4 busy processes
    python benchmarks/crowded.py --busy 0,8 --rows 16

One and all threads take turns, a burst of steps each; medians over the bursts of their mean step.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import numpy as np
from ramet.kernels.cpu import CpuOps
from ramet.kernels.ops import Batch
from ramet.runtime import store
from ramet.runtime.worker.models import Model, load_model

from kernels import BLOCK, Row, batch_of


class Decoder:
    def __init__(self, threads: int, rows: int) -> None:
        ops = CpuOps(threads=threads)
        self.threads = ops.threads
        folder = store.resolve("default", progress=False)
        self.model: Model = load_model(folder, ops)
        meta = folder.meta
        self.kv = ops.kv_cache(meta.layers, 8 * rows, BLOCK, meta.kv_heads, meta.head_dim)
        self.batch: Batch = batch_of([Row(1, 127, range(8 * i, 8 * i + 8)) for i in range(rows)])
        self.model.program.run(batch_of([Row(128, 0, range(8 * i, 8 * i + 8)) for i in range(rows)]), self.kv)

    def burst(self, seconds: float) -> float:
        """Mean milliseconds of a step."""
        begun = time.perf_counter()
        steps = 0
        while time.perf_counter() < begun + seconds:
            self.model.program.run(self.batch, self.kv)
            steps += 1
        return 1e3 * (time.perf_counter() - begun) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", default="0,2,4", help="numbers of busy processes (0,2,4)")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--bursts", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.7, help="of a burst (0.7)")
    given = parser.parse_args()
    np.seterr(all="ignore")
    decoders = [Decoder(1, given.rows), Decoder(0, given.rows)]
    for busy in (int(word) for word in given.busy.split(",")):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            time.sleep(0.3 if busy else 0.0)
            bursts = [[decoder.burst(given.seconds) for decoder in decoders] for _ in range(given.bursts)]
        finally:
            for other in others:
                other.kill()
                other.wait()
        one, all_of_them = (statistics.median(column) for column in zip(*bursts, strict=True))
        ratio = statistics.median(many / single for single, many in bursts)
        print(
            f"{busy} busy processes: 1 thread {one:.2f} ms, {decoders[1].threads} threads {all_of_them:.2f} ms a step, "
            f"ratio {ratio:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
