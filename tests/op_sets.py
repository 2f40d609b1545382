"""The op sets under test, and random inputs for them. A new implementation joins by one entry in ``OP_SETS``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from ramet.kernels.ops import Batch, GroupSpec, OpSet, QuantTensor
from ramet.kernels.reference import ReferenceOps
from ramet.kernels.select import has_cpu_kernels

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
KV_DTYPES = ("f32", "bf16", "f16", "int8")


@dataclass(frozen=True)
class OpSetCase:
    """``make(kv_dtype)`` builds it. ``matmul_error``: allowed max|a - b| / max|b| of a product with quantised weights
    (activations may be rounded to int8); ``plain_error`` that of one with F32 or F16
    weights, ``bf16_error`` with BF16 (activations may be rounded to it). ``kinds``: those that
    it takes. ``exact``: relative error of everything else."""

    name: str
    make: Callable[[str], OpSet]
    matmul_error: float = 2e-6
    plain_error: float = 2e-6
    bf16_error: float = 2e-6
    exact: float = 2e-6
    attention_error: Callable[[str], float] = lambda kv_dtype: 1e-5
    """Relative error of attention over stored (rounded) KV of a type: queries and probabilities may be rounded too."""
    kinds: Sequence[str] = KINDS
    kv_dtypes: Sequence[str] = KV_DTYPES
    threaded: Callable[[int], OpSet] | None = None
    """Builds it with that many threads (KV in bf16): results must not depend on it."""


# one thread: the tests' matrices are so small that handing them around costs more than they do
OP_SETS: list[OpSetCase] = [
    OpSetCase(
        "reference",
        lambda kv_dtype: ReferenceOps(kv_dtype, threads=1),
        threaded=lambda threads: ReferenceOps("bf16", threads),
    )
]

if has_cpu_kernels():
    from ramet.kernels.cpu import CpuOps
    from ramet.kernels.cpu.opset import lanes

    def _cpu_case(isa: str) -> OpSetCase:
        pairs = isa in ("avx512", "amx")  # bf16 dot products

        def make(kv_dtype: str) -> OpSet:
            return CpuOps(isa, kv_dtype, threads=2)

        return OpSetCase(
            f"cpu-{isa}",
            make,
            matmul_error=1e-2,
            bf16_error=8e-3 if pairs else 2e-6,
            attention_error=lambda kv_dtype: 8e-3 if pairs and kv_dtype in ("bf16", "int8") else 1e-5,
            threaded=lambda threads: CpuOps(isa, "bf16", threads=threads),
        )

    OP_SETS.extend(_cpu_case(isa) for isa in lanes())


# kind: (elements and bytes of a block, offsets of its float16 scales)
_LAYOUT = {
    "Q4_0": (32, 18, (0,)),
    "Q4_1": (32, 20, (0, 2)),
    "Q5_0": (32, 22, (0,)),
    "Q5_1": (32, 24, (0, 2)),
    "Q8_0": (32, 34, (0,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
}


def random_tensor(kind: str, shape: tuple[int, ...], rng: np.random.Generator, scale: float = 0.1) -> QuantTensor:
    """Random bytes with scales of a sensible size, so that every bit of a block matters."""
    count = int(np.prod(shape))
    if kind in ("F32", "F16", "BF16"):
        values = rng.normal(size=count).astype(np.float32) * np.float32(scale)
        if kind == "BF16":
            data = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        else:
            data = values.astype("<f4" if kind == "F32" else "<f2").view(np.uint8)
        return QuantTensor(kind, shape, data, f"random {kind}")
    elements, size, scales = _LAYOUT[kind]
    assert shape[-1] % elements == 0
    blocks = rng.integers(0, 256, (count // elements, size), dtype=np.uint8)
    greatest = {"Q8_0": 128, "Q6_K": 32 * 128}.get(kind, 32 * 64 if kind.endswith("K") else 16)
    for at in scales:
        chosen = (rng.uniform(0.2, 1.0, len(blocks)) * scale / greatest * 2).astype("<f2")
        if kind in ("Q4_1", "Q5_1") and at == 2:
            chosen = (-rng.uniform(0.2, 1.0, len(blocks)) * scale).astype("<f2")  # a minimum below zero
        blocks[:, at : at + 2] = chosen[:, None].view(np.uint8)
    return QuantTensor(kind, shape, blocks.reshape(-1), f"random {kind}")


def float_tensor(values: np.ndarray) -> QuantTensor:
    values = np.ascontiguousarray(values, dtype="<f4")
    return QuantTensor("F32", values.shape, values.reshape(-1).view(np.uint8), "values")


@dataclass(frozen=True)
class Row:
    """``ids`` to be computed at positions ``start`` and up, with the row's KV in ``blocks``."""

    ids: Sequence[int]
    start: int
    blocks: Sequence[int]


def make_batch(rows: Sequence[Row], logits: str | Sequence[int] = "all", groups: Sequence[GroupSpec] = ()) -> Batch:
    """``logits``: "all" tokens, the "last" of each row, or indices into the concatenated ids."""
    counts = [len(row.ids) for row in rows]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    tables = np.zeros((len(rows), max((len(row.blocks) for row in rows), default=0)), dtype=np.int32)
    for index, row in enumerate(rows):
        tables[index, : len(row.blocks)] = row.blocks
    wanted: Sequence[int] = (
        range(int(starts[-1])) if logits == "all" else [int(s) - 1 for s in starts[1:]] if logits == "last" else logits
    )
    return Batch(
        ids=np.concatenate([np.asarray(row.ids, dtype=np.int32) for row in rows]),
        positions=np.concatenate([np.arange(r.start, r.start + len(r.ids), dtype=np.int32) for r in rows]),
        row_start=starts,
        context=np.array([row.start + len(row.ids) for row in rows], dtype=np.int32),
        block_tables=tables,
        logit_rows=np.asarray(list(wanted), dtype=np.int32),
        groups=groups,
    )


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """max|a - b| / max|b|; inf where anything is not finite."""
    if actual.shape != expected.shape or not np.isfinite(actual).all():
        return float("inf")
    return float(np.abs(actual - expected).max(initial=0.0) / max(np.abs(expected).max(initial=0.0), 1e-30))
