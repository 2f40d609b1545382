"""Matmul whose every output element is computed in the same shapes, whatever the batch and the number of threads.

The product is cut into pieces of ROWS rows and COLUMNS outputs. Each piece is one single-threaded call, and pieces are
handed to a pool. (A library's own threads would spin at their barriers, which on a busy machine costs many times the
work itself.) The rows are the columns of the right-hand factor: neighbouring lanes of one vector register.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import torch

ROWS = 32
COLUMNS = 768


def padded(count: int) -> int:
    """``count`` rounded up to whole tiles of ROWS."""
    return -(-count // ROWS) * ROWS


def single_threaded() -> None:
    """To be called in each thread that multiplies: the library keeps its number of threads per thread, and sums long
    rows in another order where it shares the work."""
    torch.set_num_threads(1)


class TiledMatmul:
    """``threads``: size of the pool; 0: one per core. Sets torch's own number of threads to 1 (process-wide)."""

    def __init__(self, threads: int) -> None:
        single_threaded()
        self._threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._threads, "matmul", single_threaded) if self._threads > 1 else None

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x @ weight.T for x [whole tiles, in] and weight [out, in], both float32."""
        out = torch.empty((len(x), len(weight)))
        turned = [x[start : start + ROWS].T.contiguous() for start in range(0, len(x), ROWS)]
        pieces = [(tile, column) for column in range(0, len(weight), COLUMNS) for tile in range(len(turned))]

        def work(share: list[tuple[int, int]]) -> None:
            with torch.inference_mode():  # a mode of the thread
                for tile, column in share:
                    product = torch.mm(weight[column : column + COLUMNS], turned[tile])
                    out[tile * ROWS : (tile + 1) * ROWS, column : column + COLUMNS] = product.T

        if self._pool is None or len(pieces) < 2:
            work(pieces)
        else:
            # one task per thread, over neighbouring pieces, which share weights
            share = -(-len(pieces) // self._threads)
            list(self._pool.map(work, [pieces[i : i + share] for i in range(0, len(pieces), share)]))
        return out
