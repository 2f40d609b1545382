"""What the C++ kernels reach on this machine, beside what the machine gives.

    python benchmarks/kernels.py [--isa auto] [--kv-dtype bf16] [--threads 0] [--only decode,prefill,...]
                                 [--cpu-time] [--json]

Each figure is the median of runs of a whole step (all layers and the head) of the default model, or of the part of it
that its name says. Bandwidth and the rates of matrix products (torch, if it is there) are measured in the same run,
since neighbours on a shared machine move all of them. ``--json`` prints one object as the last line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from ramet.kernels import _cpu
from ramet.kernels.cpu import CpuOps
from ramet.kernels.cpu.opset import CpuProgram
from ramet.kernels.ops import Batch, GroupSpec, SampleBatch
from ramet.runtime import store
from ramet.runtime.worker.models import load_model

BLOCK = 16


def seconds(run: Callable[[], object], least: float = 0.5, most: int = 200) -> list[float]:
    """Times of repeated runs, after one that doesn't count: at least five, for ``least`` seconds."""
    run()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < least and len(times) < most):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


@dataclass(frozen=True)
class Row:
    count: int
    first: int
    blocks: Sequence[int] | NDArray[np.int32]


def batch_of(rows: Sequence[Row], groups: Sequence[GroupSpec] = ()) -> Batch:
    """Rows of ``count`` tokens from position ``first`` on; logits for the last of each."""
    starts = np.cumsum([0, *(row.count for row in rows)]).astype(np.int32)
    tables = np.zeros((len(rows), max(len(row.blocks) for row in rows)), np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.blocks)] = row.blocks
    ids = np.random.default_rng(0).integers(100, 30_000, int(starts[-1])).astype(np.int32)
    return Batch(
        ids=ids,
        positions=np.concatenate([np.arange(r.first, r.first + r.count, dtype=np.int32) for r in rows]),
        row_start=starts,
        context=np.array([row.first + row.count for row in rows], np.int32),
        block_tables=tables,
        logit_rows=starts[1:] - 1,
        groups=groups,
    )


@dataclass
class Bench:
    isa: str
    kv_dtype: str
    threads: int
    cpu_time: bool = False
    figures: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ops = CpuOps(self.isa, self.kv_dtype, self.threads)
        self.folder = store.resolve("default", progress=False)
        start = time.perf_counter()
        self.model = load_model(self.folder, self.ops)
        self.note("load the model", 1e3 * (time.perf_counter() - start), "ms")
        self.meta = self.folder.meta
        self.kv = self.ops.kv_cache(self.meta.layers, 900, BLOCK, self.meta.kv_heads, self.meta.head_dim)
        self.run(batch_of([Row(1, i * BLOCK, range(900)) for i in range(900)]))  # no untouched page, no NaN
        self.weight_bytes = sum(path.stat().st_size for path in self.folder.weights)
        self.bandwidth: list[float] = []

    @property
    def program(self) -> CpuProgram:
        program = self.model.program
        assert isinstance(program, CpuProgram)
        return program

    def run(self, batch: Batch) -> NDArray[np.float32]:
        return self.program.run(batch, self.kv)

    def note(self, name: str, value: float, unit: str, remark: str = "") -> None:
        self.figures[f"{name} [{unit}]"] = round(value, 4)
        print(f"{name:<52}{value:>10.2f} {unit:<10}{remark}", flush=True)

    def profile(self, batch: Batch) -> dict[str, float]:
        """Median seconds per kind of step."""
        native = self.program.native
        runs = []
        native.profile(True)
        for _ in range(7):
            self.run(batch)
            runs.append(native.profile(True))
        native.profile(False)
        return {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}

    # The machine

    def machine(self) -> None:
        for size in (96, 1024):
            memory = _cpu.allocate(size << 20)
            memory[:] = 1
            engine = _cpu.Engine(self.ops.isa, self.threads)
            best = [(size << 20) / s / 1e9 for s in seconds(lambda m=memory, e=engine: e.read(m))]  # type: ignore[misc]
            self.note(f"read {size} MiB", statistics.median(best), "GB/s", f"best {max(best):.1f}")
            self.bandwidth.append(statistics.median(best))
        try:
            import torch
        except ImportError:
            return
        torch.set_num_threads(self.ops.threads)
        for name, kind in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            a = torch.ones(2048, 2048, dtype=kind)
            rate = 2 * 2048**3 / statistics.median(seconds(lambda a=a: a @ a, 0.3)) / 1e9  # type: ignore[misc]
            self.note(f"matrix product {name} (torch)", rate, "GFLOP/s")
        a8 = torch.ones(2048, 2048, dtype=torch.int8)
        rate = 2 * 2048**3 / statistics.median(seconds(lambda: torch._int_mm(a8, a8), 0.3)) / 1e9
        self.note("matrix product int8 (torch)", rate, "GOP/s")

    # Steps

    def decode(self) -> None:
        for rows in (1, 2, 4, 8, 16, 32):
            batch = batch_of([Row(1, 127, range(i * 8, i * 8 + 8)) for i in range(rows)])
            times = seconds(lambda b=batch: self.run(b))  # type: ignore[misc]
            median = statistics.median(times)
            rate = self.weight_bytes / median / 1e9
            self.note(
                f"decode, {rows} rows of 128",
                1e3 * median,
                "ms",
                f"best {1e3 * min(times):.2f}, weights {rate:.1f} GB/s",
            )
        batch = batch_of([Row(1, 127, range(8))])
        inside = sum(self.profile(batch).values())
        whole = statistics.median(seconds(lambda: self.run(batch)))
        self.note("outside of the steps, 1 row", max(0.0, 100 * (1 - inside / whole)), "%", "of the step's time")
        for rows in (1, 16):
            batch = batch_of([Row(1, 127, range(i * 8, i * 8 + 8)) for i in range(rows)])
            self.parts(f"decode, {rows} rows", batch)

    def parts(self, name: str, batch: Batch) -> None:
        parts = self.profile(batch)
        total = sum(parts.values())
        line = ", ".join(f"{k} {100 * v / total:.0f} %" for k, v in sorted(parts.items(), key=lambda p: -p[1]))
        print(f"    where {name} goes: {line}")

    def prefill(self) -> None:
        for tokens in (16, 64, 128, 512, 1500):
            batch = batch_of([Row(tokens, 0, range(100))])
            median = statistics.median(seconds(lambda b=batch: self.run(b)))  # type: ignore[misc]
            flop = 2.0 * self.matmul_weights() * tokens
            self.note(
                f"prefill, {tokens} tokens", tokens / median, "tokens/s", f"{flop / median / 1e9:.0f} GOP/s of matmul"
            )
        self.parts("prefill, 1500 tokens", batch)

    def matmul_weights(self) -> int:
        """Weights of the layers' matrices."""
        m = self.meta
        attention = m.width * m.head_dim * (2 * m.heads + 2 * m.kv_heads)
        return m.layers * (attention + 3 * m.width * m.ffn)

    # Attention

    def attention_flop(self, pairs: float) -> float:
        """Of ``pairs`` (query, key) pairs in every head and layer."""
        return 4.0 * self.meta.head_dim * self.meta.heads * self.meta.layers * pairs

    def attention(self) -> None:
        for tokens in (512, 1500, 4096):
            batch = batch_of([Row(tokens, 0, range(-(-tokens // BLOCK)))])
            used = self.profile(batch)["attention"]
            flop = self.attention_flop(tokens * (tokens + 1) / 2)
            self.note(f"attention, prefill of {tokens}", flop / used / 1e9, "GFLOP/s")
        for tokens, cached in ((30, 1504), (512, 4096)):
            batch = batch_of([Row(tokens, cached, range(-(-(cached + tokens) // BLOCK)))])
            used = self.profile(batch)["attention"]
            flop = self.attention_flop(tokens * (cached + (tokens + 1) / 2))
            self.note(f"attention, prefill of {tokens} after {cached}", flop / used / 1e9, "GFLOP/s")
        for tokens in (1024, 4096):
            batch = batch_of([Row(1, tokens - 1, range(tokens // BLOCK))])
            used = self.profile(batch)["attention"]
            size = 2 * 2 * tokens * self.meta.kv_heads * self.meta.head_dim * self.meta.layers
            self.note(f"attention, one row at {tokens}", size / used / 1e9, "GB/s", "of KV, in bf16")

    def attention_time(self, rows: Sequence[Row], groups: Sequence[GroupSpec] = ()) -> float:
        """Seconds. With ``cpu_time`` what a step spends beyond one of the same rows at their first position."""
        if not self.cpu_time:
            return self.profile(batch_of(rows, groups))["attention"]
        bare = batch_of([Row(row.count, 0, row.blocks) for row in rows])
        return min(self.cpu_seconds(batch_of(rows, groups))) - min(self.cpu_seconds(bare))

    def cpu_seconds(self, batch: Batch) -> list[float]:
        self.run(batch)
        times = []
        for _ in range(7):
            begun = time.process_time()
            self.run(batch)
            times.append(time.process_time() - begun)
        return times

    def groups(self) -> None:
        shared = range(256)
        for rows in (1, 2, 4, 8, 16, 32, 64):
            batch_rows = [Row(1, 4096, [*shared, 300 + i]) for i in range(rows)]
            everyone = np.arange(rows, dtype=np.int32)
            halves = [g for g in np.array_split(everyone, 2) if len(g) > 1]
            quarters = [g for g in np.array_split(everyone, 4) if len(g) > 1]
            levels = [
                [GroupSpec(everyone, 0, 4096)],
                [GroupSpec(everyone, 0, 2048), *(GroupSpec(g, 2048, 4096) for g in halves)],
                [
                    GroupSpec(everyone, 0, 1024),
                    *(GroupSpec(g, 1024, 2048) for g in halves),
                    *(GroupSpec(g, 2048, 4096) for g in quarters),
                ],
            ]
            plain = self.attention_time(batch_rows)
            flop = self.attention_flop(4097 * rows)
            self.note(
                f"attention, {rows} rows over 4096, apart", 1e3 * plain, "ms", f"{flop / plain / 1e9:.0f} GFLOP/s"
            )
            for depth, groups in enumerate(levels if rows > 1 else [], 1):
                used = self.attention_time(batch_rows, groups)
                self.note(
                    f"attention, {rows} rows over 4096, {depth} levels",
                    1e3 * used,
                    "ms",
                    f"{flop / used / 1e9:.0f} GFLOP/s, {plain / used:.1f} times as fast",
                )

    # Sampling

    def sampling(self) -> None:
        logits = self.run(batch_of([Row(20, 0, range(2 * i, 2 * i + 2)) for i in range(16)])).copy()
        for name, temperature, top_p, logprobs in (
            ("greedy", 0.0, 1.0, -1),
            ("greedy with 5 log-probabilities", 0.0, 1.0, 5),
            ("temperature 1", 1.0, 1.0, -1),
            ("temperature 1, top_p 0.9", 1.0, 0.9, -1),
        ):
            rows = len(logits)
            batch = SampleBatch(
                temperature=np.full(rows, temperature, np.float32),
                top_p=np.full(rows, top_p, np.float32),
                top_k=np.zeros(rows, np.int32),
                min_p=np.zeros(rows, np.float32),
                key=np.arange(rows, dtype=np.uint64),
                position=np.arange(rows, dtype=np.int64),
                logprobs=np.full(rows, logprobs, np.int32),
            )
            median = statistics.median(seconds(lambda b=batch: self.ops.sample(logits, b)))  # type: ignore[misc]
            self.note(f"sample 16 rows, {name}", 1e6 * median, "us")


PARTS = ("machine", "decode", "prefill", "attention", "groups", "sampling")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="auto", help=f"auto or one of {', '.join(_cpu.lanes())}")
    parser.add_argument("--kv-dtype", default="bf16", choices=("f32", "bf16", "f16", "int8"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="of groups the least CPU time, for a machine that others use (with --threads 1)",
    )
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    parts = given.only.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: choose from {', '.join(PARTS)}")
    bench = Bench(given.isa, given.kv_dtype, given.threads, given.cpu_time)
    print(f"{bench.ops.fingerprint()}, {bench.ops.threads} threads, {bench.folder.meta.name}")
    for part in parts:
        getattr(bench, part)()
    if given.json:
        print(json.dumps({"fingerprint": bench.ops.fingerprint(), "threads": bench.ops.threads} | bench.figures))


if __name__ == "__main__":
    main()
