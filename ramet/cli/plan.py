"""KV memory of a model, and how many branches of a length fit into it at once.

Prefixes that branches share are stored once, so with --shared the same memory holds more of them.
"""

from __future__ import annotations

import argparse
import json

from ramet.cli.machine import memory
from ramet.cli.options import add_model_option, block_size, count, positive
from ramet.runtime.protocol.config import SchedulerConfig

_BYTES = {"f32": 4.0, "bf16": 2.0, "f16": 2.0, "int8": 1.0}
_GIB = 1 << 30
DEFAULTS = SchedulerConfig()
_LENGTHS = (256, 1024, 2048, 4096, 8192)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    parser.add_argument("--kv-dtype", choices=tuple(_BYTES), default="bf16")
    parser.add_argument("--block-size", type=block_size, default=DEFAULTS.block_size, help="tokens of a block (8)")
    parser.add_argument("--memory", type=float, default=None, metavar="GIB", help="memory for KV (half the free)")
    parser.add_argument("--tokens", type=positive, default=None, help="length of a branch (several are shown)")
    parser.add_argument("--shared", type=count, default=0, help="tokens of it that all branches share (0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def bytes_per_token(layers: int, kv_heads: int, head_dim: int, kv_dtype: str) -> int:
    """K and V of all layers; int8 has one float32 scale per token and head for each of the two."""
    scales = 4 if kv_dtype == "int8" else 0
    return 2 * layers * kv_heads * (int(head_dim * _BYTES[kv_dtype]) + scales)


def branches(pool: int, tokens: int, shared: int, block: int) -> int:
    """Branches of ``tokens`` tokens that a pool of ``pool`` tokens holds at once; ``shared`` of each are stored once.

    Only whole blocks are shared::

        0 ............. whole blocks ....... shared ... tokens
        |    stored once    |       per branch, whole blocks    |
    """
    once = min(shared, tokens) // block * block
    each = -(-(tokens - once) // block) * block
    return max(0, (pool - once) // each) if each else 0


def run(arguments: argparse.Namespace) -> int:
    from ramet.runtime import store

    meta = store.resolve(arguments.model).meta
    per_token = bytes_per_token(meta.layers, meta.kv_heads, meta.head_dim, arguments.kv_dtype)
    available = memory()[1]
    budget = int(arguments.memory * _GIB) if arguments.memory is not None else (available or 2 * _GIB) // 2
    pool = budget // per_token // arguments.block_size * arguments.block_size
    lengths = [arguments.tokens] if arguments.tokens else [n for n in _LENGTHS if arguments.shared < n <= meta.context]
    rows = {length: branches(pool, length, arguments.shared, arguments.block_size) for length in lengths}
    if arguments.json:
        print(
            json.dumps(
                {
                    "model": meta.name,
                    "kv_dtype": arguments.kv_dtype,
                    "bytes_per_token": per_token,
                    "memory_bytes": budget,
                    "kv_tokens": pool,
                    "shared": arguments.shared,
                    "branches": rows,
                }
            )
        )
        return 0
    print(f"{meta.name}: {meta.layers} layers, {meta.kv_heads} KV heads of {meta.head_dim}, context {meta.context}")
    print(
        f"{per_token / 1024:.1f} KiB of {arguments.kv_dtype} KV per token; {budget / _GIB:.2f} GiB hold {pool} tokens"
    )
    print(f"that is --kv-tokens {pool}\n")
    print(f"{'tokens':>8}  branches at once" + (f" ({arguments.shared} tokens shared)" if arguments.shared else ""))
    for length, number in rows.items():
        print(f"{length:>8}  {number}")
    return 0
