"""What this machine can do at best: read bandwidth, and the rates of matrix products in three types."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ramet.bench.results import Rates

_LARGE, _SMALL = 1 << 30, 96 << 20
_PIECES_PER_THREAD = 8
_SIDE = 2048


def measure(cores: int, flags: Iterable[str], free_bytes: int | None, *, passes: int = 5) -> Rates:
    """``flags``: instruction sets of the CPU; ``free_bytes``: memory that may be used, None if unknown.

    Takes a few seconds. On a busy machine the figures are too low: look at the spread, and measure again.
    """
    large = _LARGE if free_bytes is None else max(_SMALL, min(_LARGE, free_bytes // 4 >> 20 << 20))
    buffer = np.ones(large // 8, np.int64)
    read_large = _spread(read_rates(buffer, cores, passes))
    read_small = _spread(read_rates(buffer[: _SMALL // 8], cores, 4 * passes))
    del buffer
    f32 = _best(lambda: _matmul_f32(_SIDE), passes)
    bf16, int8 = _torch_rates(_SIDE, cores, passes)
    estimated = bf16 is None or int8 is None
    known = set(flags)
    return Rates(
        cores=cores,
        read_large=read_large,
        large_bytes=large,
        read_small=read_small,
        small_bytes=_SMALL,
        f32_gflops=f32,
        bf16_gflops=bf16 or f32 * (2 if {"avx512_bf16", "bf16"} & known else 1),
        int8_gops=int8 or f32 * (4 if {"avx512_vnni", "i8mm", "amx_int8"} & known else 2),
        estimated=estimated,
    )


def read_rates(data: NDArray[np.int64], threads: int, passes: int) -> list[float]:
    """GB/s of summing ``data`` with all threads, pass by pass. Sums of integers, which numpy adds as fast as they come;
    small pieces from a common queue, so that a thread which loses its core for a while holds up nobody."""
    pieces = np.array_split(data, threads * _PIECES_PER_THREAD)
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.sum, pieces))  # starts the threads
        for _ in range(passes):
            started = time.perf_counter()
            total = sum(map(int, pool.map(np.sum, pieces)))
            rates.append(data.nbytes / (time.perf_counter() - started) / 1e9)
            assert total == int(data[0]) * data.size, "the buffer holds one value throughout"
    return rates


def _spread(rates: list[float]) -> tuple[float, float, float]:
    return min(rates), float(median(rates)), max(rates)


def _best(rate: Callable[[], float], passes: int) -> float:
    """The highest: a limit is asked for, and every disturbance lowers the rate."""
    return max(rate() for _ in range(passes))


def _matmul_f32(side: int) -> float:
    a = np.ones((side, side), np.float32)
    started = time.perf_counter()
    a @ a
    return 2 * side**3 / (time.perf_counter() - started) / 1e9


def _torch_rates(side: int, threads: int, passes: int) -> tuple[float | None, float | None]:
    """(bf16, int8) in Gop/s; None where torch is not installed or has no such product."""
    if importlib.util.find_spec("torch") is None:
        return None, None
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)

    def rate(product: Callable[[], object]) -> float | None:
        def once() -> float:
            started = time.perf_counter()
            product()
            return 2 * side**3 / (time.perf_counter() - started) / 1e9

        try:
            once()
            return _best(once, passes)
        except (RuntimeError, AttributeError):
            return None

    try:
        half = torch.ones(side, side, dtype=torch.bfloat16)
        byte = torch.ones(side, side, dtype=torch.int8)
        return rate(lambda: half @ half), rate(lambda: torch._int_mm(byte, byte))
    finally:
        torch.set_num_threads(before)
