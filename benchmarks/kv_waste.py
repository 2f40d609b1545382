"""Allocated but unused KV, by workload and block size: ``python benchmarks/kv_waste.py``.

The load client's workloads W2 to W5 by structure, through the real scheduler: 16 streams of 64 tokens; 64 requests on a
shared prompt of 1,500 tokens, 16 at a time; 8 conversations of 6 turns; a tree of 16 leaves. A slot is unused while a
row holds its block and the slot holds nothing; the share is over all steps, weighed by what is held.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from programs import Prompt, Script, requests_of
from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.scheduler.simulate import Options, simulate


def w2(s: Script) -> None:
    for _ in range(16):
        s.call((s.part(128),), 64)


def w3(s: Script) -> None:
    shared = s.part(1500)
    for _ in range(64):
        s.call((shared, s.part(30)), 16)


def w4(s: Script) -> None:
    for _ in range(8):
        text: Prompt = ()
        last: list[int] = []
        for _ in range(6):
            text = (*text, s.part(60))
            last = [s.call(text, 32, after=last)]
            text = (*text, s.said(last[0]))


def w5(s: Script) -> None:
    root = s.part(800)
    for _ in range(4):
        branch = s.part(150)
        for _ in range(4):
            s.call((root, branch, s.part(50)), 16)


WORKLOADS: dict[str, Callable[[Script], None]] = {"W2": w2, "W3": w3, "W4": w4, "W5": w5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result: dict[str, dict[int, float]] = {}
    for name, workload in WORKLOADS.items():
        for size in (4, 8, 16, 32):
            config = SchedulerConfig(block_size=size, max_rows=16)
            report = simulate(requests_of(workload), Options(40_000, config, concurrency=16))
            result.setdefault(name, {})[size] = report.waste
    if arguments.json:
        print(json.dumps(result))
        return
    print("workload | blocks of 4 | of 8 | of 16 | of 32")
    for name, shares in result.items():
        print(f"{name} | " + " | ".join(f"{share:.1%}" for share in shares.values()))


if __name__ == "__main__":
    main()
