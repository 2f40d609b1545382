"""A row's logits are the same bytes however the row is computed: alone or batched, whole or in chunks, grouped or not,
on one thread or two, whatever lies in the rest of the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cpu_cases import F32, Row, batch_of, float_weight, small_rope
from ramet.kernels.ops import GroupSpec, QuantTensor

cpu = pytest.importorskip("ramet.kernels.cpu")
from ramet.kernels.cpu.opset import lanes  # noqa: E402
from test_cpu_ops import poison, raw_weight  # noqa: E402

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 2, 256, 6, 2, 64, 512, 100
BLOCKS = 200


class TinyModel:
    """Two layers of a llama with random weights of mixed kinds (or all in ``only``), on one op set."""

    def __init__(self, ops, block: int = 16, only: str = "") -> None:
        rng = np.random.default_rng(7)
        self.ops, self.block = ops, block

        def weight(kind: str, out: int, columns: int):
            if only == "BF16":
                bits = (rng.standard_normal((out, columns)) * 0.05).astype(np.float32).view(np.uint32)
                data = (bits >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
                return ops.weight(QuantTensor(only, (out, columns), data))
            return ops.weight(raw_weight(kind, out, columns, rng))

        def vector(n: int):
            return ops.weight(float_weight(rng.uniform(0.5, 1.5, n).astype(np.float32)))

        embedding = float_weight(rng.standard_normal((VOCAB, WIDTH)).astype(np.float32))
        self.table = ops.weight(embedding)
        self.layers = [
            {
                "attn_norm": vector(WIDTH),
                "q": weight("Q4_1", HEADS * HEAD, WIDTH),
                "k": weight("Q4_0", KV_HEADS * HEAD, WIDTH),
                "v": weight("Q6_K", KV_HEADS * HEAD, WIDTH),
                "o": weight("Q4_1", WIDTH, HEADS * HEAD),
                "ffn_norm": vector(WIDTH),
                "gate": weight("Q4_1", FFN, WIDTH),
                "up": weight("Q4_K", FFN, WIDTH),
                "down": weight("Q5_0", WIDTH, FFN),
            }
            for _ in range(LAYERS)
        ]
        self.norm = vector(WIDTH)
        self.head = weight("Q8_0", VOCAB, WIDTH)
        self.program = ops.compile(self.forward)
        self.kv = self.fresh()

    def fresh(self):
        kv = self.ops.kv_cache(LAYERS, BLOCKS * 16 // self.block, self.block, KV_HEADS, HEAD)
        poison(kv, self.ops)
        return kv

    def forward(self, o):
        spec = small_rope(HEAD)
        x = o.embed(self.table)
        for i, w in enumerate(self.layers):
            h = o.rms_norm(x, w["attn_norm"], 1e-5)
            q, k, v = (o.matmul(h, w[name]) for name in "qkv")
            q, k = o.rope(q, HEADS, spec), o.rope(k, KV_HEADS, spec)
            o.store_kv(k, v, i)
            x = o.add(x, o.matmul(o.attention(q, i, HEADS, 0.125), w["o"]))
            h = o.rms_norm(x, w["ffn_norm"], 1e-5)
            x = o.add(x, o.matmul(o.silu_mul(o.matmul(h, w["gate"]), o.matmul(h, w["up"])), w["down"]))
        return o.matmul(o.rms_norm(o.take_rows(x), self.norm, 1e-5), self.head)

    def run(self, rows: Sequence[Row], groups: Sequence[GroupSpec] = ()) -> F32:
        return self.program.run(batch_of(rows, groups), self.kv).copy()

    def blocks(self, start: int, tokens: int) -> list[int]:
        return list(range(start, start + -(-tokens // self.block)))


@pytest.fixture(params=[(isa, kv) for isa in lanes() for kv in ("f32", "bf16", "f16", "int8")], ids="-".join)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def model(kind) -> TinyModel:
    return TinyModel(cpu.CpuOps(isa=kind[0], kv_dtype=kind[1], threads=2))


def ids_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def alone(model: TinyModel, ids: Sequence[int]) -> F32:
    """Logits of every position, one token a step, in a fresh cache."""
    model.kv = model.fresh()
    blocks = model.blocks(3, len(ids))
    return np.concatenate([model.run([Row([token], i, blocks)]) for i, token in enumerate(ids)])


def same(a: F32, b: F32) -> bool:
    return a.tobytes() == b.tobytes() and bool(np.isfinite(a).all())


@pytest.mark.parametrize("chunk", (1, 7, 16, 64, 150))
def test_chunking(model, chunk):
    ids = ids_of(1, 150)
    wanted = alone(model, ids)
    model.kv = model.fresh()
    blocks = model.blocks(0, 150)
    got = np.concatenate([model.run([Row(ids[i : i + chunk], i, blocks)]) for i in range(0, 150, chunk)])
    assert same(got, wanted)


def test_batching_with_rows_of_every_length(model):
    lengths = [1, 2, 3, 5, 17, 64, 65, 130]
    wanted = [alone(model, ids_of(n, n + 20)) for n in lengths]
    model.kv = model.fresh()
    prefixes, rows, start = [], [], 0
    for n in lengths:
        blocks = model.blocks(start, n + 20)
        start += len(blocks)
        prefixes.append(Row(ids_of(n, n + 20)[:n], 0, blocks))
        rows.append(Row(ids_of(n, n + 20)[n:], n, blocks))
    first, second = model.run(prefixes), model.run(rows)
    got = [np.concatenate([first[sum(lengths[:i]) :][:n], second[20 * i : 20 * i + 20]]) for i, n in enumerate(lengths)]
    assert all(same(g, w) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize("isa", lanes())
def test_weights_in_bf16(isa):
    ids = ids_of(12, 75)
    model = TinyModel(cpu.CpuOps(isa=isa, threads=2), only="BF16")
    wanted = alone(model, ids)
    for chunk in (5, 16, 31, 75):
        model.kv = model.fresh()
        got = [model.run([Row(ids[i : i + chunk], i, model.blocks(0, 75))]) for i in range(0, 75, chunk)]
        assert same(np.concatenate(got), wanted)


def test_prefill_beside_decode(model):
    a, b = ids_of(3, 90), ids_of(4, 70)
    wanted_a, wanted_b = alone(model, a), alone(model, b)
    model.kv = model.fresh()
    blocks_a, blocks_b = model.blocks(10, 90), model.blocks(50, 70)
    model.run([Row(a[:89], 0, blocks_a)])
    got = model.run([Row(b, 0, blocks_b), Row(a[89:], 89, blocks_a)])
    assert same(got[:70], wanted_b) and same(got[70:], wanted_a[89:])


@pytest.mark.parametrize("block", (1, 2, 4, 8, 32))
def test_block_sizes(kind, block):
    ids = ids_of(5, 100)
    isa, kv_dtype = kind
    wanted = alone(TinyModel(cpu.CpuOps(isa=isa, kv_dtype=kv_dtype, threads=1)), ids)
    model = TinyModel(cpu.CpuOps(isa=isa, kv_dtype=kv_dtype, threads=1), block)
    got = model.run([Row(ids, 0, model.blocks(0, 100))])
    assert same(got, wanted)


@pytest.mark.parametrize("block", (1, 2, 4, 8))
def test_short_blocks_anywhere(kind, block):
    """What shares a tile with others, in any order, is read as what stands alone; so are copies of parts of it."""
    ids, others = ids_of(5, 75), ids_of(6, 70)
    ops = cpu.CpuOps(isa=kind[0], kv_dtype=kind[1], threads=2)
    wanted, wanted_others = alone(TinyModel(ops), ids), alone(TinyModel(ops), others)
    model = TinyModel(ops, block)
    places = np.random.default_rng(block).permutation(2 * (75 // block + 2)).tolist()
    a, b, free = places[: -(-75 // block)], places[-(-75 // block) :][: -(-70 // block)], 200
    got = model.run([Row(ids[:60], 0, a), Row(others, 0, b)])
    assert same(got[:60], wanted[:60]) and same(got[60:], wanted_others)
    got = model.run([Row(ids[60:74], 60, a), Row(others[69:], 69, b)])
    assert same(got[:14], wanted[60:74]) and same(got[14:], wanted_others[69:])
    for at in range(40, 40 + 2 * block + 1):
        fork = [*a[: at // block], *range(free + at, free + at + -(-75 // block))]
        part = [np.array([x], np.int32) for x in (a[at // block], free + at, at % block)]
        model.ops.copy_blocks(model.kv, *part)
        assert same(model.run([Row(ids[at:], at, fork)]), wanted[at:])


def test_threads(kind):
    ids = ids_of(6, 100)
    results = []
    for threads in (1, 2, 5):
        model = TinyModel(cpu.CpuOps(isa=kind[0], kv_dtype=kind[1], threads=threads))
        results.append(model.run([Row(ids, 0, model.blocks(0, 100)), Row(ids[:3], 0, model.blocks(20, 3))]))
    assert same(results[0], results[1]) and same(results[0], results[2])


@pytest.mark.parametrize("offset", range(0, 17))
def test_a_prefix_copied_from_another_branch(model, offset):
    """Fork at every offset of a block: its first tokens are copied, the rest computed anew."""
    ids = ids_of(8, 60)
    wanted = alone(model, ids)
    model.kv = model.fresh()
    source = model.blocks(0, 60)
    model.run([Row(ids, 0, source)])
    at = 32 + offset
    target = [*source[: at // 16], *range(100, 103)]
    if at % 16:
        args = [np.array([x], np.int32) for x in (source[at // 16], 100, at % 16)]
        model.ops.copy_blocks(model.kv, *args)
    got = model.run([Row(ids[at:], at, target)])
    assert same(got, wanted[at:])


def group(rows: Sequence[int], start: int, stop: int) -> GroupSpec:
    return GroupSpec(np.array(rows, np.int32), start, stop)


GROUPINGS = {
    "all": [group(range(8), 0, 192)],
    "two levels": [group(range(8), 0, 128), group([0, 2, 4, 6], 128, 192), group([1, 3, 5, 7], 128, 192)],
    "three levels": [
        group(range(8), 0, 64),
        group([0, 1, 2, 5], 64, 128),
        group([1, 5], 128, 192),
        group([4, 7], 64, 192),
    ],
    "overlapping": [group(range(8), 0, 192), group([0, 1, 2], 0, 128)],
    "middle": [group([0, 3, 7], 64, 128)],
}


@pytest.mark.parametrize("tokens", (1, 3, 40))
@pytest.mark.parametrize("groups", GROUPINGS.values(), ids=GROUPINGS.keys())
def test_grouped_attention(model, groups, tokens):
    """Eight rows over one prefix of 200 tokens, each with a tail of its own."""
    prefix = ids_of(9, 192)
    shared = model.blocks(0, 192)
    model.run([Row(prefix, 0, shared)])
    rows, tails = [], []
    for i in range(8):
        own = list(range(20 + 10 * i, 30 + 10 * i))
        tails.append(Row(ids_of(20 + i, 5 * i), 192, [*shared, *own]))
        rows.append(Row(ids_of(40 + i, tokens), 192 + 5 * i, [*shared, *own]))
    model.run(tails[1:])
    plain = model.run(rows)
    assert same(model.run(rows, groups), plain)
    assert same(model.run([rows[5]]), plain[5 * tokens : 6 * tokens])


def test_window_with_any_chunking(kind):
    """A sliding window: a segment that a query does not see leaves its state alone."""
    ops = cpu.CpuOps(isa=kind[0], kv_dtype=kind[1], threads=2)
    rng = np.random.default_rng(11)
    q, k, v = (ops.weight(float_weight(rng.standard_normal((150, n)).astype(np.float32))) for n in (128, 64, 64))

    def forward(o):
        o.store_kv(o.embed(k), o.embed(v), 0)
        return o.take_rows(o.attention(o.embed(q), 0, 4, 0.2, window=30))

    program = ops.compile(forward)
    kv = ops.kv_cache(1, 10, 16, 2, 32)
    whole = program.run(batch_of([Row(range(150), 0, range(10))]), kv).copy()
    single = [program.run(batch_of([Row([i], i, range(10))]), kv).copy() for i in range(150)]
    assert same(np.concatenate(single), whole)


def test_weights_may_be_read_from_anywhere(kind):
    """Packed bytes need no alignment of their own."""
    ops = cpu.CpuOps(isa=kind[0], kv_dtype=kind[1], threads=1)
    weight = raw_weight("Q4_1", 32, 256, np.random.default_rng(0))
    assert isinstance(weight, QuantTensor)
    x = ops.weight(float_weight(np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32)))
    packed = ops.weight(weight)
    from ramet.kernels.cpu.weights import Arena, pack, wrap

    plain = pack(ops._engine, weight, Arena())
    shifted = np.zeros(len(plain) + 33, np.uint8)
    shifted[33:] = plain
    results = []
    for w in (packed, wrap(ops._engine, weight, shifted[33:])):
        program = ops.compile(lambda o, w=w: o.take_rows(o.matmul(o.embed(x), w)))
        results.append(program.run(batch_of([Row(range(4), 0, [0])]), ops.kv_cache(1, 1, 16, 1, 16)).copy())
    assert same(*results)


@pytest.mark.parametrize("quant", ("Q4_0", "Q4_1", "Q8_0", "Q6_K", "Q5_K"))
@pytest.mark.parametrize("rows", (1, 16, 50))
def test_lanes_with_fused_multiply_add_agree_on_matmul(quant, rows):
    """Integer products are exact whichever instruction forms them, and their sums have one order."""
    weight = raw_weight(quant, 64, 512, np.random.default_rng(0))
    x = float_weight(np.random.default_rng(1).standard_normal((rows, 512)).astype(np.float32))
    results = []
    for isa in lanes():
        if isa == "portable":
            continue
        ops = cpu.CpuOps(isa=isa, threads=1)
        table, packed = ops.weight(x), ops.weight(weight)
        program = ops.compile(lambda o, x=table, w=packed: o.take_rows(o.matmul(o.embed(x), w)))
        kv = ops.kv_cache(1, 4, 16, 1, 16)
        results.append(program.run(batch_of([Row(range(rows), 0, range(4))]), kv).copy())
    assert all(same(result, results[0]) for result in results)
