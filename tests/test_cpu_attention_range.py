"""Attention where scores climb and fall by hundreds over the segments: right, and the same bits alone and in groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ramet.kernels.select import has_cpu_kernels

if not has_cpu_kernels():
    pytest.skip("the C++ kernels were not built", allow_module_level=True)

from cpu_cases import F32, Row, batch_of, float_weight
from ramet.kernels.cpu import CpuOps
from ramet.kernels.cpu.opset import lanes
from ramet.kernels.ops import GroupSpec

HEADS, KV_HEADS, SIZE, BLOCK, SHARED = 6, 2, 64, 16, 320
ROWS, TAIL = 7, 9
COUNT = SHARED + ROWS * TAIL
SCALE = 0.25 * math.log(2)
"""A lane may round queries to bf16 once they are scaled to powers of two: those of the test stay what they are."""

# Factor of the keys of segment after segment: the maximum moves by less, and by more, than a power of 2 or 8 or 100.
WAVES = {
    "flat": [1, 1, 1, 1, 1, 1],
    "climbing": [0.1, 1, 4, 20, 100, 300],
    "falling": [300, 100, 20, 4, 1, 0.1],
    "jumping": [1, 200, 0.1, 400, 2, 30],
    "creeping": [5, 6, 7, 8, 9, 10],
}


def keys_of(wave: str, rng: np.random.Generator) -> F32:
    keys = rng.normal(size=(COUNT, KV_HEADS * SIZE)).astype(np.float32)
    factors = np.array(WAVES[wave], np.float32)
    return keys * factors[np.minimum(np.arange(COUNT) // 64, 5)][:, None]


def expected(q: F32, k: F32, v: F32, positions: list[int]) -> F32:
    """Of one query per row, over what its row has stored: ``positions`` are indices of tokens."""
    out = np.empty((HEADS, SIZE))
    for head in range(HEADS):
        part = slice(head // (HEADS // KV_HEADS) * SIZE, (head // (HEADS // KV_HEADS) + 1) * SIZE)
        scores = k[positions, part].astype(np.float64) @ q[head * SIZE : (head + 1) * SIZE].astype(np.float64) * SCALE
        weights = np.exp(scores - scores.max())
        out[head] = weights @ v[positions, part] / weights.sum()
    return out.reshape(-1).astype(np.float32)


def bf16(x: F32) -> F32:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("isa", lanes())
@pytest.mark.parametrize("wave", WAVES)
def test_scores_of_any_range(isa: str, wave: str) -> None:
    rng = np.random.default_rng(3)
    q = bf16(rng.normal(size=(COUNT, HEADS * SIZE)).astype(np.float32))
    k, v = bf16(keys_of(wave, rng)), bf16(rng.normal(size=(COUNT, KV_HEADS * SIZE)).astype(np.float32))
    ops = CpuOps(isa, "bf16", threads=1)
    tables = [ops.weight(float_weight(array)) for array in (q, k, v)]

    def forward(o):
        o.store_kv(o.embed(tables[1]), o.embed(tables[2]), 0)
        return o.take_rows(o.attention(o.embed(tables[0]), 0, HEADS, SCALE))

    program = ops.compile(forward)
    kv = ops.kv_cache(1, SHARED // BLOCK + ROWS, BLOCK, KV_HEADS, SIZE)
    shared = list(range(SHARED // BLOCK))
    tails = [range(SHARED + i * TAIL, SHARED + (i + 1) * TAIL) for i in range(ROWS)]
    program.run(batch_of([Row(range(SHARED), 0, shared)], every=False), kv)
    whole = [Row(tail, SHARED, [*shared, len(shared) + i]) for i, tail in enumerate(tails)]
    together = program.run(batch_of(whole), kv).copy()
    for i, tail in enumerate(tails):
        for j, token in enumerate(tail):
            right = expected(q[token], k, v, [*range(SHARED), *tail[: j + 1]])
            np.testing.assert_allclose(together[i * TAIL + j], right, atol=2e-2)

    last = [Row(tail[-1:], SHARED + TAIL - 1, row.blocks) for tail, row in zip(tails, whole, strict=True)]
    everyone, some = np.arange(ROWS, dtype=np.int32), np.array([1, 2, 4, 6], np.int32)
    wanted = together[TAIL - 1 :: TAIL]
    for groups in (
        [],
        [GroupSpec(everyone, 0, SHARED)],
        [GroupSpec(everyone, 0, 128), GroupSpec(some, 128, SHARED)],
        [GroupSpec(some, 0, 192)],
    ):
        assert program.run(batch_of(last, groups), kv).tobytes() == wanted.tobytes()
    for row, right in zip(last, wanted, strict=True):
        assert program.run(batch_of([row]), kv).tobytes() == right.tobytes()
