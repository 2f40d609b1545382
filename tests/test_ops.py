"""Every op of every op set against plain float64 arithmetic, with odd sizes and poisoned storage."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from op_sets import KINDS, KV_DTYPES, OP_SETS, OpSetCase, Row, float_tensor, make_batch, random_tensor, relative_error
from ramet.kernels.dequantise import dequantise
from ramet.kernels.ops import Batch, OpSet, QuantTensor, RopeSpec

pytestmark = pytest.mark.parametrize("case", OP_SETS, ids=lambda case: case.name)

WIDTH = 96


def run(ops: OpSet, forward: Callable[..., object], batch: Batch, layers: int = 1, **cache: int) -> np.ndarray:
    sizes = {"blocks": 16, "block_size": 16, "kv_heads": 1, "head_dim": 8} | cache
    kv = ops.kv_cache(layers, **sizes)
    return ops.compile(forward).run(batch, kv).copy()


def inputs(count: int, rng: np.random.Generator, width: int = WIDTH, scale: float = 1.0) -> tuple[Batch, np.ndarray]:
    """A batch of ``count`` tokens in uneven rows, whose embeddings are random: (batch, table)."""
    table = (rng.normal(size=(count + 3, width)) * scale).astype(np.float32)
    cuts = sorted({0, count, *rng.integers(0, count + 1, 3).tolist()})
    ids = rng.permutation(count + 3)[:count]
    rows = [
        Row(ids[a:b].tolist(), int(rng.integers(0, 5)), [2 * i, 2 * i + 1, 2 * i + 2, 2 * i + 3])
        for i, (a, b) in enumerate(itertools.pairwise(cuts))
    ]
    return make_batch(rows), table


@pytest.mark.parametrize("kind", KINDS)
def test_embed_gives_the_rows_of_the_table(case: OpSetCase, kind: str) -> None:
    if kind not in case.kinds:
        pytest.skip("kind not supported")
    rng = np.random.default_rng(1)
    table = random_tensor(kind, (37, 256), rng)
    batch = make_batch([Row([36, 0, 5], 0, [0]), Row([5], 7, [1])])
    ops = case.make("f32")
    weight = ops.weight(table)
    actual = run(ops, lambda o: o.take_rows(o.embed(weight)), batch)
    assert relative_error(actual, dequantise(table)[[36, 0, 5, 5]]) <= case.exact


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 5, 16, 33])
def test_matmul(case: OpSetCase, kind: str, count: int) -> None:
    if kind not in case.kinds:
        pytest.skip("kind not supported")
    rng = np.random.default_rng(count)
    width = 512 if kind.endswith("K") else WIDTH
    batch, table = inputs(count, rng, width)
    weight = random_tensor(kind, (37, width), rng)
    ops = case.make("f32")
    embedding, matrix = ops.weight(float_tensor(table)), ops.weight(weight)
    actual = run(ops, lambda o: o.take_rows(o.matmul(o.embed(embedding), matrix)), batch)
    expected = table[batch.ids].astype(np.float64) @ dequantise(weight).astype(np.float64).T
    allowed = {"F32": case.plain_error, "F16": case.plain_error, "BF16": case.bf16_error}.get(kind, case.matmul_error)
    assert relative_error(actual, expected) <= allowed


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm(case: OpSetCase, scale: float) -> None:
    rng = np.random.default_rng(2)
    batch, table = inputs(19, rng, scale=scale)
    weight = rng.normal(size=WIDTH).astype(np.float32)
    ops = case.make("f32")
    embedding, vector = ops.weight(float_tensor(table)), ops.weight(float_tensor(weight))
    actual = run(ops, lambda o: o.take_rows(o.rms_norm(o.embed(embedding), vector, 1e-5)), batch)
    x = table[batch.ids].astype(np.float64)
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
    assert relative_error(actual, expected) <= case.exact


def test_add_silu_mul_and_bias(case: OpSetCase) -> None:
    rng = np.random.default_rng(3)
    batch, table = inputs(21, rng, scale=20.0)
    second, vector = rng.normal(size=table.shape).astype(np.float32), rng.normal(size=WIDTH).astype(np.float32)
    table[0, :4] = [0.0, -200.0, 200.0, -87.0]
    ops = case.make("f32")
    a, b, c = (ops.weight(float_tensor(values)) for values in (table, second, vector))
    x, y = table[batch.ids].astype(np.float64), second[batch.ids].astype(np.float64)
    summed = run(ops, lambda o: o.take_rows(o.add(o.embed(a), o.embed(b))), batch)
    assert relative_error(summed, x + y) <= case.exact
    biased = run(ops, lambda o: o.take_rows(o.bias(o.embed(a), c)), batch)
    assert relative_error(biased, x + vector) <= case.exact
    gated = run(ops, lambda o: o.take_rows(o.silu_mul(o.embed(a), o.embed(b))), batch)
    assert relative_error(gated, x / (1 + np.exp(-x)) * y) <= case.exact
    gated = run(ops, lambda o: o.take_rows(o.gelu_mul(o.embed(a), o.embed(b))), batch)
    gelu = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    assert relative_error(gated, gelu * y) <= case.exact
    scaled = run(ops, lambda o: o.take_rows(o.embed(a, 25.25)), batch)
    assert relative_error(scaled, x * 25.25) <= case.exact


@pytest.mark.parametrize("size", [8, 32, 48])
def test_rms_norm_of_runs(case: OpSetCase, size: int) -> None:
    """As the heads of Qwen3 and Gemma 3 want it: each run of the weight's length by itself."""
    rng = np.random.default_rng(7)
    batch, table = inputs(19, rng)
    weight = rng.normal(size=size).astype(np.float32)
    ops = case.make("f32")
    embedding, vector = ops.weight(float_tensor(table)), ops.weight(float_tensor(weight))
    actual = run(ops, lambda o: o.take_rows(o.rms_norm(o.embed(embedding), vector, 1e-6)), batch)
    x = table[batch.ids].astype(np.float64).reshape(19, -1, size)
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
    assert relative_error(actual, expected.reshape(19, -1)) <= case.exact


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("start", [0, 3000])
def test_rope(case: OpSetCase, interleaved: bool, start: int) -> None:
    rng = np.random.default_rng(4)
    heads, size = 3, 32
    table = rng.normal(size=(9, heads * size)).astype(np.float32)
    batch = make_batch([Row(list(range(5)), start, list(range(250))), Row([8, 7], start + 40, list(range(250)))])
    frequencies = (10_000.0 ** -(np.arange(0, size, 2) / size)).astype(np.float32)
    spec = RopeSpec(frequencies, interleaved)
    ops = case.make("f32")
    embedding = ops.weight(float_tensor(table))
    actual = run(ops, lambda o: o.take_rows(o.rope(o.embed(embedding), heads, spec)), batch, blocks=256)
    x = table[batch.ids].astype(np.float64).reshape(-1, heads, size)
    angles = batch.positions[:, None, None] * frequencies.astype(np.float64)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : size // 2], x[..., size // 2 :])
    a, b = first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)
    expected = np.stack([a, b], -1) if interleaved else np.concatenate([a, b], -1)
    assert relative_error(actual, expected.reshape(len(x), -1)) <= max(case.exact, 5e-4 if start else 1e-5)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 of ``values`` [..., E] as the cache's type stores them."""
    if dtype == "f32":
        return values.astype(np.float64)
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float64)
    if dtype == "bf16":
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16  # to nearest, ties to even
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)
    scale = (np.abs(values).max(-1, keepdims=True) / np.float32(127)).astype(np.float64)
    return np.rint(values / np.where(scale > 0, scale, 1)) * scale


def allowed_error(case: OpSetCase, dtype: str) -> float:
    """Of attention; int8 values lie on a border now and then, where two ways to divide round apart."""
    return max(case.attention_error(dtype), 2e-2 if dtype == "int8" else 0)


class Story:
    """Several rows that grow step by step over one cache whose slots all held NaN at first."""

    def __init__(
        self, case: OpSetCase, dtype: str, *, heads: int, kv_heads: int, size: int, block_size: int, window: int = 0
    ) -> None:
        self.heads, self.kv_heads, self.size, self.block_size, self.window = heads, kv_heads, size, block_size, window
        self.dtype = dtype
        self.rng = np.random.default_rng(5)
        self.ops = case.make(dtype)
        self.blocks = 640 // block_size
        self.kv = self.ops.kv_cache(2, self.blocks, block_size, kv_heads, size)
        self.count = 400
        widths = {"q": heads * size, "k": kv_heads * size, "v": kv_heads * size}
        self.tables = {
            name: self.rng.normal(size=(self.count + 1, width)).astype(np.float32) for name, width in widths.items()
        }
        for table in self.tables.values():
            table[self.count] = np.nan
        weights = {name: self.ops.weight(float_tensor(table)) for name, table in self.tables.items()}

        def forward(o):  # type: ignore[no-untyped-def]
            o.store_kv(o.embed(weights["k"]), o.embed(weights["v"]), 0)  # another layer, to be left alone
            o.store_kv(o.embed(weights["k"]), o.embed(weights["v"]), 1)
            return o.take_rows(o.attention(o.embed(weights["q"]), 1, heads, 0.25, window))

        self.program = self.ops.compile(forward)
        poison = [
            Row([self.count] * block_size, 0, [block]) for block in range(self.blocks)
        ]  # stores NaN in every slot
        self.program.run(make_batch(poison, logits=[]), self.kv)

    def expected(self, ids: list[int], positions: range) -> np.ndarray:
        """Attention of the tokens at ``positions`` over a row with all of ``ids``."""
        group = self.heads // self.kv_heads
        shape = (len(ids), self.kv_heads, self.size)
        k = rounded(self.tables["k"][ids].reshape(shape), self.dtype)
        v = rounded(self.tables["v"][ids].reshape(shape), self.dtype)
        q = self.tables["q"][ids].astype(np.float64).reshape(len(ids), self.heads, self.size)
        out = np.zeros((len(positions), self.heads, self.size))
        for i, p in enumerate(positions):
            low = max(0, p + 1 - self.window) if self.window else 0
            for h in range(self.heads):
                scores = k[low : p + 1, h // group] @ q[p, h] * 0.25
                weights = np.exp(scores - scores.max())
                out[i, h] = weights / weights.sum() @ v[low : p + 1, h // group]
        return out.reshape(len(positions), -1)

    def scattered(self, rows: int, tokens: int) -> list[list[int]]:
        """Block tables for rows of ``tokens`` tokens, blocks in random order."""
        need = -(-tokens // self.block_size)
        order = self.rng.permutation(self.blocks)[: rows * need].tolist()
        return [order[i * need : (i + 1) * need] for i in range(rows)]


SHAPES = [
    {"heads": 4, "kv_heads": 2, "size": 16, "block_size": 16},
    {"heads": 3, "kv_heads": 1, "size": 64, "block_size": 32},
    {"heads": 5, "kv_heads": 5, "size": 8, "block_size": 1},
    {"heads": 9, "kv_heads": 3, "size": 64, "block_size": 16, "window": 70},
]


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_attention_over_prefill_decode_and_mixed_rows(case: OpSetCase, dtype: str, shape: dict[str, int]) -> None:
    if dtype not in case.kv_dtypes:
        pytest.skip("cache type not supported")
    story = Story(case, dtype, **shape)
    ids = [story.rng.integers(0, story.count, 150).tolist() for _ in range(3)]
    tables = story.scattered(3, 150)
    done = [0, 0, 0]
    # each step: how many tokens of each row
    for step in ([1, 63, 130], [66, 1, 1], [1, 0, 1], [70, 66, 17], [1, 1, 1]):
        rows, chosen = [], []
        for i, count in enumerate(step):
            if count:
                rows.append(Row(ids[i][done[i] : done[i] + count], done[i], tables[i]))
                chosen.append((i, range(done[i], done[i] + count)))
                done[i] += count
        actual = story.program.run(make_batch(rows), story.kv)
        expected = np.concatenate([story.expected(ids[i][: positions.stop], positions) for i, positions in chosen])
        assert relative_error(actual, expected) <= allowed_error(case, dtype)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_copied_blocks_hold_the_first_tokens(case: OpSetCase, dtype: str) -> None:
    if dtype not in case.kv_dtypes:
        pytest.skip("cache type not supported")
    story = Story(case, dtype, heads=2, kv_heads=1, size=16, block_size=16)
    ids = story.rng.integers(0, story.count, 30).tolist()
    story.program.run(make_batch([Row(ids, 0, [3, 5])]), story.kv)
    story.ops.copy_blocks(story.kv, np.array([3, 5], np.int32), np.array([9, 1], np.int32), np.array([16, 7], np.int32))
    # a child that agrees on the first 23 tokens and then goes its own way
    other = [*ids[:23], *story.rng.integers(0, story.count, 9).tolist()]
    actual = story.program.run(make_batch([Row(other[23:], 23, [9, 1])]), story.kv)
    assert relative_error(actual, story.expected(other, range(23, 32))) <= max(
        case.attention_error(dtype), 2e-2 if dtype == "int8" else 0
    )
    # and the source is as it was
    again = story.program.run(make_batch([Row([ids[0]], 30, [3, 5])]), story.kv)
    assert relative_error(again, story.expected([*ids, ids[0]], range(30, 31))) <= max(
        case.attention_error(dtype), 2e-2 if dtype == "int8" else 0
    )


def test_copying_nothing_is_allowed(case: OpSetCase) -> None:
    ops = case.make("f32")
    none = np.zeros(0, np.int32)
    ops.copy_blocks(ops.kv_cache(1, 4, 16, 1, 8), none, none, none)


def test_take_rows_keeps_order_and_repeats(case: OpSetCase) -> None:
    rng = np.random.default_rng(6)
    table = rng.normal(size=(40, WIDTH)).astype(np.float32)
    ops = case.make("f32")
    embedding = ops.weight(float_tensor(table))
    wanted = [4, 0, 17, 4]
    batch = make_batch([Row(list(range(18)), 0, [0, 1])], logits=wanted)
    assert np.array_equal(run(ops, lambda o: o.take_rows(o.embed(embedding)), batch), table[wanted])


def test_a_step_without_wanted_rows_gives_no_logits(case: OpSetCase) -> None:
    rng = np.random.default_rng(7)
    ops = case.make("f32")
    embedding, head = (ops.weight(float_tensor(rng.normal(size=(40, WIDTH)))) for _ in range(2))
    batch = make_batch([Row([1, 2, 3], 0, [0])], logits=[])
    assert run(ops, lambda o: o.matmul(o.take_rows(o.embed(embedding)), head), batch).shape == (0, 40)


def test_damaged_weights_are_refused(case: OpSetCase) -> None:
    ops = case.make("f32")
    with pytest.raises(ValueError, match="Q4_1"):
        ops.weight(QuantTensor("Q4_1", (2, 32), np.zeros(39, dtype=np.uint8), "short"))
    with pytest.raises(ValueError, match="Q9_9"):
        ops.weight(QuantTensor("Q9_9", (2, 32), np.zeros(40, dtype=np.uint8), "unknown"))
