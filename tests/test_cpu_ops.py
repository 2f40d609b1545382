"""Each op of the C++ kernels against float64 arithmetic, in every lane that this machine can run."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from cpu_cases import Row, batch_of, float_weight, quantise, run, small_rope
from ramet.kernels.ops import QuantTensor

cpu = pytest.importorskip("ramet.kernels.cpu")
from ramet.kernels.cpu.opset import lanes  # noqa: E402

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@pytest.fixture(params=lanes(), scope="module")
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def raw_weight(kind: str, rows: int, columns: int, rng: np.random.Generator) -> QuantTensor:
    """Random bits in the layout of ``kind``, with scales that keep the values small."""
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows * columns // weights, size), dtype=np.uint8)
    halves = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}.get(kind, (0,))
    for at in halves:
        scales = rng.uniform(0.001, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return QuantTensor(kind, (rows, columns), blocks.reshape(-1), "w")


def values_of(tensor: QuantTensor) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[tensor.kind]
    rows = tensor.data.reshape(tensor.shape[0], -1)
    return gguf.dequantize(rows, kind).reshape(tensor.shape).astype(np.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "out", "columns"), [(1, 48, 256), (7, 33, 512), (13, 16, 768), (70, 100, 256)])
def test_quantised_matmul_is_exact_up_to_the_rounding_of_activations(isa, kind, rows, out, columns):
    rng = np.random.default_rng(rows)
    ops = cpu.CpuOps(isa=isa, threads=2)
    weight = raw_weight(kind, out, columns, rng)
    x = rng.standard_normal((rows, columns)).astype(np.float32) * 3
    x[0, :32] = 0
    table, packed = ops.weight(float_weight(x)), ops.weight(weight)
    got = run(ops, lambda o: o.matmul(o.embed(table), packed), rows)
    q, scale = quantise(x)
    rounded = (q * scale[:, :, None].astype(np.float64)).reshape(x.shape)
    wanted = rounded @ values_of(weight).T
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(rounded).sum(axis=1).max()
    assert np.isfinite(got).all()


@pytest.mark.parametrize("kind", ("F32", "F16", "BF16"))
@pytest.mark.parametrize(("rows", "out", "columns"), [(9, 37, 50), (1, 64, 96), (40, 100, 64), (70, 33, 32)])
def test_float_matmul(isa, kind, rows, out, columns):
    rng = np.random.default_rng(1)
    ops = cpu.CpuOps(isa=isa, threads=2)
    w = rng.standard_normal((out, columns)).astype(np.float32)
    if kind == "F16":
        w = w.astype(np.float16).astype(np.float32)
        data = w.astype(np.float16).view(np.uint8)
    elif kind == "BF16":
        w = (w.view(np.uint32) & 0xFFFF0000).view(np.float32)
        data = (w.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        data = w.view(np.uint8)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    table, packed = ops.weight(float_weight(x)), ops.weight(QuantTensor(kind, w.shape, data.reshape(-1)))
    got = run(ops, lambda o: o.matmul(o.embed(table), packed), rows)
    if packed.form == "bf16":
        bits = x.view(np.uint32)
        x = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    np.testing.assert_allclose(got, x.astype(np.float64) @ w.T.astype(np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_rows_are_the_dequantised_rows(isa, kind):
    rng = np.random.default_rng(2)
    ops = cpu.CpuOps(isa=isa, threads=1)
    weight = raw_weight(kind, 40, 256, rng)
    table = ops.weight(weight)
    got = run(ops, lambda o: o.embed(table), 40)
    np.testing.assert_allclose(got, values_of(weight), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", (1, 15, 64, 100))
def test_row_ops(isa, width):
    rng = np.random.default_rng(width)
    ops = cpu.CpuOps(isa=isa, threads=2)
    a, b, w = (rng.standard_normal((n, width)).astype(np.float32) for n in (6, 6, 1))
    ta, tb, tw = ops.weight(float_weight(a)), ops.weight(float_weight(b)), ops.weight(float_weight(w[0]))
    exact = a.astype(np.float64)

    normed = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) * w
    close = {"rtol": 2e-5, "atol": 2e-6}
    np.testing.assert_allclose(run(ops, lambda o: o.rms_norm(o.embed(ta), tw, 1e-5), 6), normed, **close)
    np.testing.assert_allclose(run(ops, lambda o: o.add(o.embed(ta), o.embed(tb)), 6), a + b, **close)
    np.testing.assert_allclose(run(ops, lambda o: o.bias(o.embed(ta), tw), 6), a + w, **close)
    gated = exact / (1 + np.exp(-exact)) * b
    np.testing.assert_allclose(run(ops, lambda o: o.silu_mul(o.embed(ta), o.embed(tb)), 6), gated, **close)


@pytest.mark.parametrize("interleaved", (True, False))
def test_rope(isa, interleaved):
    rng = np.random.default_rng(3)
    ops = cpu.CpuOps(isa=isa, threads=2)
    x = rng.standard_normal((20, 64)).astype(np.float32)
    table, spec = ops.weight(float_weight(x)), small_rope(32, interleaved)
    got = run(ops, lambda o: o.rope(o.embed(table), 2, spec), 20)
    angle = np.arange(20)[:, None] * spec.inv_freq.astype(np.float64)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    heads = x.reshape(20, 2, 32).astype(np.float64)
    a, b = (heads[..., 0::2], heads[..., 1::2]) if interleaved else (heads[..., :16], heads[..., 16:])
    turned = (a * cos - b * sin, a * sin + b * cos)
    wanted = np.stack(turned, -1) if interleaved else np.concatenate(turned, -1)
    np.testing.assert_allclose(got, wanted.reshape(20, 64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", ("f32", "bf16", "f16", "int8"))
@pytest.mark.parametrize("block", (1, 4, 16, 32))
@pytest.mark.parametrize("window", (0, 40))
def test_attention_over_paged_kv(isa, kv_dtype, block, window):
    rng = np.random.default_rng(4)
    ops = cpu.CpuOps(isa=isa, kv_dtype=kv_dtype, threads=2)
    count, heads, groups, width = 150, 6, 2, 32
    q, k, v = (rng.standard_normal((count, n * width)).astype(np.float32) for n in (heads, groups, groups))
    tables = [ops.weight(float_weight(x)) for x in (q, k, v)]

    def forward(o):
        o.store_kv(o.embed(tables[1]), o.embed(tables[2]), 0)
        return o.take_rows(o.attention(o.embed(tables[0]), 0, heads, 0.2, window))

    blocks = rng.permutation(2 * (count // block + 1))[: count // block + 1]
    kv = ops.kv_cache(1, 2 * (count // block + 1), block, groups, width)
    poison(kv, ops)
    got = ops.compile(forward).run(batch_of([Row(range(count), 0, blocks)]), kv)

    mask = np.tril(np.ones((count, count), bool))
    if window:
        mask &= ~np.tril(np.ones((count, count), bool), -window)
    wanted = np.empty((count, heads, width))
    qs, ks, vs = (x.reshape(count, -1, width).astype(np.float64) for x in (q, k, v))
    for head in range(heads):
        s = qs[:, head] @ ks[:, head // 3].T * 0.2
        p = np.exp(s - s.max(axis=1, keepdims=True)) * mask
        wanted[:, head] = p @ vs[:, head // 3] / p.sum(axis=1, keepdims=True)
    tolerance = {"f32": 2e-5, "f16": 3e-3, "bf16": 3e-2, "int8": 5e-2}[kv_dtype]
    assert np.abs(got - wanted.reshape(count, -1)).max() < tolerance


def poison(kv, ops) -> None:
    """Stale slots hold NaN: stores through a program whose keys and values are NaN."""
    blocks, block, heads, width = kv.blocks, kv.block, kv.heads, kv.width
    bad = ops.weight(float_weight(np.full((1, heads * width), np.nan, np.float32)))

    def forward(o):
        x = o.embed(bad)
        o.store_kv(x, x, 0)
        return o.take_rows(x)

    ops.compile(forward).run(batch_of([Row([0] * (blocks * block), 0, range(blocks))]), kv)
