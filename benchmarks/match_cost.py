"""Cost of the prefix tree: ``python benchmarks/match_cost.py`` prints microseconds, medians of many.

A tree of 1.28 M tokens in 20,000 branches under prompts of 7,500 tokens, blocks of 16. One operation is what a request
of 8,000 tokens with 7,500 cached asks of the tree: match, acquire, commit of the 500 new ones, release.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
from ramet.radix import BlockPool, Namespace, RadixTree

NAMESPACE = Namespace("bench")


def build(branches: int, tokens: int, block_size: int, shared: int, seed: int) -> tuple[RadixTree, list[bytes]]:
    """A tree of about ``tokens`` tokens: long prompts, and branches of equal length below them."""
    rng = np.random.default_rng(seed)
    prompts = max(1, tokens // 4 // shared)
    each = max(block_size, (tokens - prompts * shared) // branches // block_size * block_size)
    pool = BlockPool(2 * tokens // block_size)
    tree = RadixTree(pool, block_size)
    heads = [rng.integers(0, 50_000, shared, dtype=np.int32).tobytes() for _ in range(prompts)]
    for branch in range(branches):
        ids = heads[branch % prompts] + rng.integers(0, 50_000, each, dtype=np.int32).tobytes()
        store(tree, ids)
    return tree, heads


def store(tree: RadixTree, ids: bytes) -> None:
    lease = tree.acquire(match := tree.match(NAMESPACE, ids))
    rest = ids[match.tokens * 4 :]
    done = tree.commit(lease, rest, tree.pool.allocate(len(rest) // 4 // tree.block_size))
    tree.pool.free(done.replaced)
    tree.release(done.lease)


def measure(branches: int, tokens: int, block_size: int, repetitions: int) -> dict[str, float]:
    shared = 7_504 // block_size * block_size
    tree, heads = build(branches, tokens, block_size, shared, seed=1)
    rng = np.random.default_rng(2)
    times: dict[str, list[float]] = {"match": [], "acquire": [], "commit": [], "release": [], "total": []}
    for i in range(repetitions):
        new = rng.integers(50_000, 60_000, 496 // block_size * block_size, dtype=np.int32).tobytes()
        ids = heads[i % len(heads)] + new
        blocks = tree.pool.allocate(len(new) // 4 // block_size)
        marks = [time.perf_counter()]
        match = tree.match(NAMESPACE, ids)
        marks.append(time.perf_counter())
        lease = tree.acquire(match)
        marks.append(time.perf_counter())
        done = tree.commit(lease, ids[match.tokens * 4 :], blocks)
        marks.append(time.perf_counter())
        tree.release(done.lease)
        marks.append(time.perf_counter())
        assert match.tokens == shared and not done.replaced
        for name, start, stop in zip(("match", "acquire", "commit", "release"), marks, marks[1:], strict=False):
            times[name].append(stop - start)
        times["total"].append(marks[-1] - marks[0])
    evictions = []
    for _ in range(20):
        start = time.perf_counter()
        assert tree.evict(1_000) == 1_000
        evictions.append(time.perf_counter() - start)
    result = {name: statistics.median(values) * 1e6 for name, values in times.items()}
    return result | {"evict_1000": statistics.median(evictions) * 1e6, "tokens": tree.stored_count * block_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=1_280_000)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.branches, arguments.tokens, arguments.block_size, arguments.repetitions)
    if arguments.json:
        print(json.dumps({name: round(value, 2) for name, value in result.items()}))
        return
    for name, value in result.items():
        print(f"{name:12s} {value:12.1f} {'tokens stored' if name == 'tokens' else 'µs'}")


if __name__ == "__main__":
    main()
