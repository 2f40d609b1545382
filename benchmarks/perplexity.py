"""Perplexity of a model under an op set: what quantised weights, rounded activations and KV types cost in quality.

    python benchmarks/perplexity.py --kernels reference --kv-dtype f32 --tokens 20000

The text is cut into windows of --context tokens; each is computed in steps of --chunk tokens over a paged cache, as the
worker does, and every token but a window's first is scored. Prints progress to stderr and one JSON object to stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from ramet.kernels.ops import Batch, KVCache, OpSet
from ramet.runtime import store
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.worker.models import Model, load_model

TEXTS = Path("/usr/share/common-licenses")
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Report:
    perplexity: float
    nats_per_token: float
    scored_tokens: int
    seconds: float
    model: str
    numerics: str


def read_ids(tokenizer: Tokenizer, files: Sequence[Path], count: int) -> list[int]:
    """The first ``count`` ids of the files' texts, one after another. Raises SystemExit if there are fewer."""
    ids: list[int] = []
    for file in files:
        ids += tokenizer.encode(file.read_text(encoding="utf-8", errors="replace"))
        if len(ids) >= count:
            return ids[:count]
    raise SystemExit(f"the texts hold {len(ids)} tokens, fewer than --tokens {count}: give more with --text")


def window_nats(model: Model, ops: OpSet, cache: KVCache, ids: Sequence[int], chunk: int) -> float:
    """Sum of -log p over ids[1:], each given all before it."""
    table = np.arange(-(-len(ids) // BLOCK_SIZE), dtype=np.int32)[None]
    total = 0.0
    for start in range(0, len(ids) - 1, chunk):
        part = np.asarray(ids[start : start + chunk], dtype=np.int32)
        wanted = np.asarray(ids[start + 1 : start + 1 + len(part)], dtype=np.int32)
        batch = Batch(
            ids=part,
            positions=np.arange(start, start + len(part), dtype=np.int32),
            row_start=np.array([0, len(part)], dtype=np.int32),
            context=np.array([start + len(part)], dtype=np.int32),
            block_tables=table,
            logit_rows=np.arange(len(wanted), dtype=np.int32),
        )
        chosen, _, _ = ops.token_logprobs(model.program.run(batch, cache), wanted, 0)
        total -= float(chosen.astype(np.float64).sum())
    return total


def measure(model: Model, ops: OpSet, ids: Sequence[int], context: int, chunk: int) -> Report:
    meta = model.config
    cache = ops.kv_cache(meta.layers, -(-context // BLOCK_SIZE), BLOCK_SIZE, meta.kv_heads, meta.head_dim)
    nats, scored, begin = 0.0, 0, time.perf_counter()
    for start in range(0, len(ids) - 1, context):
        window = ids[start : start + context]
        if len(window) < 2:
            break
        nats += window_nats(model, ops, cache, window, chunk)
        scored += len(window) - 1
        print(f"{start + len(window)} of {len(ids)} tokens: perplexity {math.exp(nats / scored):.4f}", file=sys.stderr)
    seconds = time.perf_counter() - begin
    return Report(math.exp(nats / scored), nats / scored, scored, round(seconds, 2), meta.name, ops.fingerprint())


def make_ops(kernels: str, kv_dtype: str, isa: str, threads: int) -> OpSet:
    if kernels == "reference":
        from ramet.kernels.reference import ReferenceOps

        return ReferenceOps(kv_dtype, threads)
    from ramet.kernels.cpu import CpuOps

    return CpuOps(isa=isa, kv_dtype=kv_dtype, threads=threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default", help="name or path, as for `ramet pull`")
    parser.add_argument("--kernels", choices=["reference", "cpu"], default="reference")
    parser.add_argument("--kv-dtype", choices=["f32", "bf16", "f16", "int8"], default="f32")
    parser.add_argument("--isa", default="auto", help="lane of the cpu kernels")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--text", type=Path, nargs="*", help=f"text files (default: those of {TEXTS})")
    given = parser.parse_args()
    files = given.text or sorted({path.resolve() for path in TEXTS.glob("*") if path.is_file()})
    folder = store.resolve(given.model)
    ops = make_ops(given.kernels, given.kv_dtype, given.isa, given.threads)
    ids = read_ids(Tokenizer.load(folder), files, given.tokens)
    print(json.dumps(asdict(measure(load_model(folder, ops), ops, ids, given.context, given.chunk))))


if __name__ == "__main__":
    main()
