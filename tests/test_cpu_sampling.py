"""Sampling and log-probabilities of the C++ kernels against a plain rendering of SampleBatch in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.kernels.ops import SampleBatch
from ramet.runtime.protocol.randomness import uniform

cpu = pytest.importorskip("ramet.kernels.cpu")
OPS = cpu.CpuOps(threads=2)


def batch(rows: int, **given) -> SampleBatch:
    def column(name: str, default, dtype) -> np.ndarray:
        return np.full(rows, given.pop(name, default)).astype(dtype)

    fixed = SampleBatch(
        temperature=column("temperature", 1.0, np.float32),
        top_p=column("top_p", 1.0, np.float32),
        top_k=column("top_k", 0, np.int32),
        min_p=column("min_p", 0.0, np.float32),
        key=np.asarray(given.pop("key", np.arange(rows)), np.uint64),
        position=np.asarray(given.pop("position", np.arange(rows) * 3), np.int64),
        logprobs=column("logprobs", -1, np.int32),
        **given,
    )
    return fixed


def plain(logits, b: SampleBatch, row: int, allowed=None) -> tuple[int, float]:
    """The drawn id and how far u is from the nearest border (draws on a border may differ by rounding)."""
    z = logits.astype(np.float64)
    if allowed is not None:
        z = np.where(allowed, z, -np.inf)
    order = sorted(np.flatnonzero(z > -np.inf), key=lambda i: (-z[i], i))
    p = np.exp((z[order] - z[order[0]]) / float(b.temperature[row]))
    keep = len(order)
    if b.top_k[row] > 0:
        keep = min(keep, int(b.top_k[row]))
    if b.top_p[row] < 1:
        sums = np.cumsum(p[:keep])
        keep = min(keep, int(np.searchsorted(sums, float(b.top_p[row]) * sums[-1])) + 1)
    if b.min_p[row] > 0:
        keep = min(keep, max(1, int((p >= float(b.min_p[row])).sum())))
    sums = np.cumsum(p[:keep])
    target = uniform(int(b.key[row]), int(b.position[row])) * sums[-1]
    index = min(int(np.searchsorted(sums, target, side="right")), keep - 1)
    border = np.abs(sums - target).min() / sums[-1]
    return int(order[index]), float(border)


@settings(deadline=None, max_examples=60)
@given(
    vocab=st.sampled_from((5, 33, 1000, 5003)),
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from((0.2, 1.0, 3.0)),
    top_p=st.sampled_from((1.0, 0.9, 0.3, 1e-6)),
    top_k=st.sampled_from((0, 1, 5, 40)),
    min_p=st.sampled_from((0.0, 0.05, 1.0)),
    masked=st.booleans(),
)
def test_draws_follow_the_definition(vocab, seed, temperature, top_p, top_k, min_p, masked):
    rng = np.random.default_rng(seed)
    rows = 4
    logits = (rng.standard_normal((rows, vocab)) * 4).astype(np.float32)
    logits[:, rng.integers(0, vocab, vocab // 3)] = 0.5  # ties
    allowed = rng.random((rows, vocab)) < 0.3
    allowed[:, 1] = True
    words = np.zeros((rows, -(-vocab // 32) * 32), np.uint8)
    words[:, :vocab] = allowed
    mask = np.packbits(words, axis=1, bitorder="little").view(np.uint32)
    extra = {"mask": mask, "masked": np.array([True, False, True, True])} if masked else {}
    b = batch(
        rows, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, key=rng.integers(0, 2**63, rows), **extra
    )
    got = OPS.sample(logits, b)
    for row in range(rows):
        use = allowed[row] if masked and extra["masked"][row] else None
        wanted, border = plain(logits[row], b, row, use)
        assert got.ids[row] == wanted or border < 1e-5


def test_greedy_takes_the_lower_id_among_equals():
    logits = np.zeros((3, 49152), np.float32)
    logits[0, [77, 30000]] = 5
    logits[1, [49151]] = 1
    got = OPS.sample(logits, batch(3, temperature=0.0))
    assert got.ids.tolist() == [77, 49151, 0]
    assert np.isnan(got.raw).all() and got.top_ids.shape == (3, 0)


def test_a_mask_that_leaves_nothing():
    logits = np.zeros((2, 40), np.float32)
    masks = {"mask": np.zeros((2, 2), np.uint32), "masked": np.array([True, False])}
    for temperature in (0.0, 1.0):
        assert OPS.sample(logits, batch(2, temperature=temperature, **masks)).ids[0] == -1


def test_bias_penalties_and_bans():
    logits = np.array([[1.0, 2.0, -1.0, 0.0]] * 4, np.float32)
    b = batch(
        4,
        temperature=0.0,
        adjust_start=np.array([0, 1, 2, 2, 2], np.int32),
        adjust_ids=np.array([2, 1], np.int32),
        adjust_values=np.array([5.0, -np.inf], np.float32),
        scale_start=np.array([0, 0, 0, 1, 2], np.int32),
        scale_ids=np.array([1, 2], np.int32),
        scale_values=np.array([4.0, 0.5], np.float32),
    )
    assert OPS.sample(logits, b).ids.tolist() == [2, 0, 0, 1]


def test_log_probabilities():
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((3, 5003)) * 5).astype(np.float32)
    mask = np.full((3, 157), 0xFFFF0000, np.uint32)
    got = OPS.sample(logits, batch(3, logprobs=4, mask=mask, masked=np.array([True, False, True])))
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)) + exact.max(
        axis=1, keepdims=True
    )
    allowed = np.arange(5003) % 32 >= 16
    for row in range(3):
        chosen = got.ids[row]
        assert abs(got.raw[row] - exact[row, chosen]) < 2e-5
        share = np.exp(exact[row])[allowed].sum() if row != 1 else 1.0
        assert abs(got.masked[row] - (exact[row, chosen] - np.log(share))) < 2e-5
        best = sorted(range(5003), key=lambda i: (-logits[row, i], i))[:4]
        assert got.top_ids[row].tolist() == best
        np.testing.assert_allclose(got.top_raw[row], exact[row, best], atol=2e-5)
    values, ids, tops = OPS.token_logprobs(logits, np.array([5, 0, 5002], np.int32), 2)
    np.testing.assert_allclose(values, exact[[0, 1, 2], [5, 0, 5002]], atol=2e-5)
    assert ids.tolist() == got.top_ids[:, :2].tolist()
    assert tops.tobytes() == got.top_raw[:, :2].tobytes()


def test_log_probabilities_of_a_row_do_not_depend_on_the_batch():
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal((9, 49152)) * 5).astype(np.float32)
    together = OPS.sample(logits, batch(9, logprobs=2))
    for row in range(9):
        single = OPS.sample(logits[row : row + 1], batch(1, logprobs=2, key=[row], position=[row * 3]))
        assert single.ids[0] == together.ids[row]
        assert single.raw.tobytes() == together.raw[row : row + 1].tobytes()
