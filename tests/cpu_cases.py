"""Small inputs for the tests of the C++ kernels: any float rows enter a program as an embedding table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ramet.kernels.ops import Batch, GroupSpec, Ops, QuantTensor, Ref, RopeSpec

F32 = NDArray[np.float32]


def float_weight(array: NDArray[np.float32], name: str = "") -> QuantTensor:
    array = np.ascontiguousarray(array, np.float32)
    return QuantTensor("F32", array.shape, array.reshape(-1).view(np.uint8), name)


@dataclass(frozen=True)
class Row:
    """One row of a batch: ids from position ``first`` on, KV in ``blocks``."""

    ids: Sequence[int]
    first: int
    blocks: Sequence[int]


def batch_of(rows: Sequence[Row], groups: Sequence[GroupSpec] = (), every: bool = True) -> Batch:
    """``every``: logits for every token, else for each row's last."""
    lengths = [len(row.ids) for row in rows]
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    tables = np.zeros((len(rows), max(len(row.blocks) for row in rows)), np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.blocks)] = row.blocks
    return Batch(
        ids=np.concatenate([np.asarray(row.ids, np.int32) for row in rows]),
        positions=np.concatenate([np.arange(row.first, row.first + len(row.ids), dtype=np.int32) for row in rows]),
        row_start=starts,
        context=np.array([row.first + len(row.ids) for row in rows], np.int32),
        block_tables=tables,
        logit_rows=np.arange(starts[-1], dtype=np.int32) if every else starts[1:] - 1,
        groups=groups,
    )


def run(ops, forward: Callable[[Ops], Ref], count: int) -> F32:
    """What ``forward`` gives for the ids 0 to count - 1."""
    program = ops.compile(lambda o: o.take_rows(forward(o)))
    kv = ops.kv_cache(1, 1 + count // 16, 16, 1, 16)
    return program.run(batch_of([Row(range(count), 0, range(1 + count // 16))]), kv).copy()


def quantise(x: F32) -> tuple[NDArray[np.int64], F32]:
    """Activations as the kernels round them: int8 [rows, blocks, 32] and float32 scales [rows, blocks]."""
    blocks = x.reshape(len(x), -1, 32).astype(np.float32)
    peak = np.abs(blocks).max(axis=2)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > 0, np.float32(127) / peak, np.float32(0)).astype(np.float32)
    return np.rint(blocks * inverse[:, :, None]).astype(np.int64), (peak / np.float32(127)).astype(np.float32)


def small_rope(width: int = 32, interleaved: bool = True) -> RopeSpec:
    return RopeSpec((1.0 / 10000 ** (np.arange(0, width, 2) / width)).astype(np.float32), interleaved)
