"""Writes a trace in ramet's own format: ``python benchmarks/generated_trace.py OUT.jsonl --requests 10000``.

Documents of 9,000 tokens, each asked about by 20 requests on average, questions of 1,000 tokens, answers of 20 to 180.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from ramet.runtime.scheduler.trace import TraceRequest, save


def generate(requests: int, seed: int) -> list[TraceRequest]:
    dice = random.Random(seed)
    documents = requests // 20 + 1
    return [
        TraceRequest(
            ((f"document {dice.randrange(documents)}", 9_000), (f"question {i}", 1_000)),
            dice.randrange(20, 180),
            at=i / 10,
        )
        for i in range(requests)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    save(arguments.output, generate(arguments.requests, arguments.seed))


if __name__ == "__main__":
    main()
