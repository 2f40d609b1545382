"""A row's logits depend on the row alone, bit for bit: not on what is beside it, how its prefill was cut, where its
blocks lie, or which rows were grouped."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_sets import KV_DTYPES, OP_SETS, OpSetCase, Row, make_batch, random_tensor
from ramet.kernels.ops import GroupSpec, OpSet, Program, QuantTensor, RopeSpec
from ramet.runtime import store
from ramet.runtime.store import ModelMeta, RopeMeta
from ramet.runtime.worker.models import load_model
from ramet.runtime.worker.models.decoder import Decoder, Ropes
from ramet.runtime.worker.models.rope import inverse_frequencies
from ramet.runtime.worker.weights import Weights

pytestmark = pytest.mark.parametrize("case", OP_SETS, ids=lambda case: case.name)

BLOCK, BLOCKS = 16, 120
META = ModelMeta(
    name="tiny",
    architecture="llama",
    layers=2,
    width=96,
    heads=6,
    kv_heads=2,
    head_dim=16,
    ffn=160,
    context=512,
    rope=RopeMeta(),
    eps=1e-5,
    vocab_size=203,
    tied=True,
    bos_id=-1,
    add_bos=False,
    end_ids=(0,),
    special_ids=(),
    sha256="",
    weights=(),
)


def tiny_weights() -> Weights:
    """Random weights of the kinds that the default model has."""
    rng = np.random.default_rng(11)
    tensors: dict[str, QuantTensor] = {"token_embd.weight": random_tensor("Q8_0", (203, 96), rng, 1.0)}
    shapes = {
        "attn_q": (96, 96),
        "attn_k": (32, 96),
        "attn_v": (32, 96),
        "attn_output": (96, 96),
        "ffn_gate": (160, 96),
        "ffn_up": (160, 96),
        "ffn_down": (96, 160),
    }
    for layer in range(2):
        for name, shape in shapes.items():
            tensors[f"blk.{layer}.{name}.weight"] = random_tensor("Q4_1", shape, rng, 0.3)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = random_tensor("F32", (96,), rng, 1.0)
    tensors["output_norm.weight"] = random_tensor("F32", (96,), rng, 1.0)
    return Weights(tensors, permuted=True, source="random")


@dataclass(frozen=True)
class Tiny:
    ops: OpSet
    program: Program


_MADE: dict[tuple[str, str], Tiny] = {}


def tiny(case: OpSetCase, dtype: str) -> Tiny:
    if (case.name, dtype) not in _MADE:
        ops = case.make(dtype)
        rope = RopeSpec(inverse_frequencies(META.rope, META.head_dim), interleaved=True)
        _MADE[case.name, dtype] = Tiny(
            ops, ops.compile(Decoder.load(META, tiny_weights(), ops, Ropes(rope, rope)).forward)
        )
    return _MADE[case.name, dtype]


def alone(model: Tiny, ids: list[int]) -> np.ndarray:
    """Logits of every token, computed in one step in a fresh cache."""
    kv = model.ops.kv_cache(2, BLOCKS, BLOCK, 2, 16)
    return model.program.run(make_batch([Row(ids, 0, list(range(-(-len(ids) // BLOCK))))]), kv).copy()


def test_one_token_at_a_time_equals_all_at_once(case: OpSetCase) -> None:
    model = tiny(case, "bf16")
    ids = np.random.default_rng(14).integers(0, 203, 80).tolist()
    kv = model.ops.kv_cache(2, BLOCKS, BLOCK, 2, 16)
    steps = [model.program.run(make_batch([Row([token], i, range(5))]), kv).copy() for i, token in enumerate(ids)]
    assert np.concatenate(steps).tobytes() == alone(model, ids).tobytes()


@settings(max_examples=8, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_batching_and_chunking_change_no_bit(case: OpSetCase, dtype: str, data: st.DataObject) -> None:
    if dtype not in case.kv_dtypes:
        pytest.skip("cache type not supported")
    model = tiny(case, dtype)
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=5))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows = [rng.integers(0, 203, length).tolist() for length in lengths]
    order = rng.permutation(BLOCKS).tolist()
    tables, used = [], 0
    for ids in rows:
        need = -(-len(ids) // BLOCK)
        tables.append(order[used : used + need])
        used += need
    kv = model.ops.kv_cache(2, BLOCKS, BLOCK, 2, 16)
    done = [0] * len(rows)
    found: list[list[np.ndarray]] = [[] for _ in rows]
    while any(done[i] < len(ids) for i, ids in enumerate(rows)):
        step = []
        for i, ids in enumerate(rows):
            count = min(data.draw(st.sampled_from([150, 64, 17, 2, 1, 0])), len(ids) - done[i])
            if count:
                step.append((i, Row(ids[done[i] : done[i] + count], done[i], tables[i])))
        step = data.draw(st.permutations(step))
        if not step:
            continue
        logits = model.program.run(make_batch([row for _, row in step]), kv).copy()
        at = 0
        for i, row in step:
            found[i].append(logits[at : at + len(row.ids)])
            at += len(row.ids)
            done[i] += len(row.ids)
    for i, ids in enumerate(rows):
        assert np.concatenate(found[i]).tobytes() == alone(model, ids).tobytes()


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_grouping_rows_that_share_blocks_changes_no_bit(case: OpSetCase, dtype: str) -> None:
    if dtype not in case.kv_dtypes:
        pytest.skip("cache type not supported")
    model = tiny(case, dtype)
    rng = np.random.default_rng(12)
    shared = rng.integers(0, 203, 128).tolist()
    tails = [rng.integers(0, 203, count).tolist() for count in (1, 20, 3, 70)]
    kv = model.ops.kv_cache(2, BLOCKS, BLOCK, 2, 16)
    model.program.run(make_batch([Row(shared, 0, list(range(8)))], logits=[]), kv)
    rows = [Row(tail, 128, [*range(8), *range(8 + 5 * i, 13 + 5 * i)]) for i, tail in enumerate(tails)]
    model.program.run(make_batch(rows, logits=[]), kv)
    after = [Row([7], 128 + len(tail), row.blocks) for tail, row in zip(tails, rows, strict=True)]
    plain = model.program.run(make_batch(after), kv).copy()
    for start, stop, members in ((0, 128, [0, 1, 2, 3]), (64, 128, [1, 3]), (0, 64, [0, 2, 3])):
        group = GroupSpec(np.array(members, np.int32), start, stop)
        assert model.program.run(make_batch(after, groups=[group]), kv).tobytes() == plain.tobytes()
    for i, tail in enumerate(tails):
        assert plain[i].tobytes() == alone(model, [*shared, *tail, 7])[-1].tobytes()


@pytest.mark.slow
def test_the_number_of_threads_changes_no_bit(case: OpSetCase, model_dir: Path) -> None:
    """On the default model, whose matrices are large enough to be shared out."""
    if case.threaded is None:
        pytest.skip("takes no number of threads")
    folder = store.open(model_dir)
    ids = np.random.default_rng(15).integers(0, folder.meta.vocab_size, 100).tolist()
    found = []
    for threads in (1, 2, 3):
        ops = case.threaded(threads)
        model = load_model(folder, ops)
        kv = ops.kv_cache(folder.meta.layers, 8, 16, folder.meta.kv_heads, folder.meta.head_dim)
        first = model.program.run(make_batch([Row(ids[:90], 0, range(8))], logits="last"), kv).tobytes()
        batch = make_batch([Row(ids[90:], 90, range(8))])
        second = model.program.run(batch, kv).tobytes()
        found.append(first + second)
        thread = threading.Thread(target=lambda m=model, b=batch, k=kv: found.append(m.program.run(b, k).tobytes()))
        thread.start()  # nor does it matter which thread calls
        thread.join()
        found[-1] = first + found[-1]
    assert len(set(found)) == 1


def test_copied_storage_gives_the_same_bits(case: OpSetCase) -> None:
    model = tiny(case, "bf16")
    ids = np.random.default_rng(13).integers(0, 203, 45).tolist()
    kv = model.ops.kv_cache(2, BLOCKS, BLOCK, 2, 16)
    model.program.run(make_batch([Row(ids[:40], 0, [4, 2, 9])], logits=[]), kv)
    source, target = np.array([2, 9], np.int32), np.array([50, 51], np.int32)
    model.ops.copy_blocks(kv, source, target, np.array([16, 8], np.int32))
    child = model.program.run(make_batch([Row(ids[40:], 40, [4, 50, 51])]), kv)
    assert child.tobytes() == alone(model, ids)[40:].tobytes()
