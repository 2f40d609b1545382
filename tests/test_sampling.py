"""Sampling: the order of operations, the draw, ties and log-probabilities, against an implementation that sorts all."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_sets import OP_SETS, OpSetCase
from ramet.kernels.ops import SampleBatch
from ramet.runtime.protocol.randomness import uniform

pytestmark = pytest.mark.parametrize("case", OP_SETS, ids=lambda case: case.name)


@dataclasses.dataclass(frozen=True)
class Row:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    key: int = 1
    position: int = 0
    logprobs: int = -1
    allowed: frozenset[int] | None = None
    adjust: tuple[tuple[int, float], ...] = ()
    scale: tuple[tuple[int, float], ...] = ()


def batch_of(rows: list[Row], width: int) -> SampleBatch:
    mask = np.zeros((len(rows), -(-width // 32)), dtype=np.uint32)
    for i, row in enumerate(rows):
        for token in row.allowed or ():
            mask[i, token // 32] |= np.uint32(1 << token % 32)

    def flat(pairs: list[tuple[tuple[int, float], ...]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        starts = np.cumsum([0, *map(len, pairs)]).astype(np.int32)
        items = [item for row in pairs for item in row]
        return starts, np.array([i for i, _ in items], np.int32), np.array([v for _, v in items], np.float32)

    adjust, scale = flat([row.adjust for row in rows]), flat([row.scale for row in rows])
    return SampleBatch(
        temperature=np.array([row.temperature for row in rows], np.float32),
        top_p=np.array([row.top_p for row in rows], np.float32),
        top_k=np.array([row.top_k for row in rows], np.int32),
        min_p=np.array([row.min_p for row in rows], np.float32),
        key=np.array([row.key for row in rows], np.uint64),
        position=np.array([row.position for row in rows], np.int64),
        logprobs=np.array([row.logprobs for row in rows], np.int32),
        mask=mask,
        masked=np.array([row.allowed is not None for row in rows]),
        adjust_start=adjust[0],
        adjust_ids=adjust[1],
        adjust_values=adjust[2],
        scale_start=scale[0],
        scale_ids=scale[1],
        scale_values=scale[2],
    )


def kept(logits: np.ndarray, row: Row) -> list[tuple[int, float]]:
    """(id, weight) in the order of the draw; one entry for a greedy row."""
    values = [float(x) for x in logits]
    for token, factor in row.scale:
        value = np.float32(values[token])
        values[token] = float(value / np.float32(factor) if value > 0 else value * np.float32(factor))
    for token, change in row.adjust:
        values[token] = float(np.float32(values[token]) + np.float32(change))
    ids = [i for i in range(len(values)) if (row.allowed is None or i in row.allowed) and values[i] > -math.inf]
    ids.sort(key=lambda i: (-values[i], i))
    if not ids:
        return []
    if row.temperature == 0:
        return [(ids[0], 1.0)]
    temperature = float(np.float32(row.temperature))
    weights = [(i, math.exp((values[i] - values[ids[0]]) / temperature)) for i in ids]
    if row.top_k > 0:
        weights = weights[: row.top_k]
    if row.top_p < 1:
        goal, total = float(np.float32(row.top_p)) * sum(w for _, w in weights), 0.0
        for count, (_, weight) in enumerate(weights, 1):
            total += weight
            if total >= goal:
                weights = weights[:count]
                break
    return [(i, w) for i, w in weights if w >= float(np.float32(row.min_p)) * weights[0][1]]


def check_draw(logits: np.ndarray, row: Row, token: int) -> None:
    """``token`` is what the row's number falls on, allowing for rounding at the edges."""
    choices = kept(logits, row)
    if not choices:
        assert token == -1
        return
    number = uniform(row.key, row.position) * sum(w for _, w in choices)
    total, near = 0.0, set()
    for i, weight in choices:
        if total - 1e-9 <= number <= total + weight + 1e-9:
            near.add(i)
        total += weight
    assert token in near


weights_of = st.sampled_from([0.0, -1.0, 0.5, 3.0, -7.5, 2.0, 2.0, 11.0])
rows = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    top_k=st.sampled_from([-1, 0, 1, 3, 20, 10_000]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    key=st.integers(0, 2**64 - 1),
    position=st.integers(0, 10_000),
    logprobs=st.sampled_from([-1, 0, 3]),
    allowed=st.none() | st.frozensets(st.integers(0, 39), max_size=12),
    adjust=st.lists(st.tuples(st.integers(0, 39), st.sampled_from([-1.5, 2.0, -math.inf])), max_size=4).map(tuple),
    scale=st.lists(
        st.tuples(st.integers(0, 39), st.sampled_from([1.3, 0.7])), max_size=4, unique_by=lambda item: item[0]
    ).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(batch=st.lists(st.tuples(st.lists(weights_of, min_size=40, max_size=40), rows), min_size=1, max_size=5))
def test_draws_follow_the_stated_order(case: OpSetCase, batch: list[tuple[list[float], Row]]) -> None:
    logits = np.array([values for values, _ in batch], dtype=np.float32)
    result = case.make("f32").sample(logits, batch_of([row for _, row in batch], 40))
    for i, (_, row) in enumerate(batch):
        check_draw(logits[i], row, int(result.ids[i]))


@pytest.mark.parametrize("row", [Row(), Row(top_p=0.95), Row(min_p=1e-4), Row(top_p=0.999, min_p=1e-6), Row(top_k=50)])
def test_large_vocabularies(case: OpSetCase, row: Row) -> None:
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=(24, 5001)) * np.linspace(0.1, 6, 24)[:, None]).astype(np.float32)
    drawn = [dataclasses.replace(row, key=int(key), position=i) for i, key in enumerate(rng.integers(0, 2**62, 24))]
    result = case.make("f32").sample(logits, batch_of(drawn, 5001))
    for i, each in enumerate(drawn):
        check_draw(logits[i], each, int(result.ids[i]))


def test_frequencies_match_probabilities(case: OpSetCase) -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float32)).repeat(4000, 0)
    result = case.make("f32").sample(logits, batch_of([Row(key=77, position=i) for i in range(4000)], 4))
    assert np.abs(np.bincount(result.ids, minlength=4) / 4000 - [0.5, 0.3, 0.15, 0.05]).max() < 0.03


def test_equal_logits_choose_the_lower_id(case: OpSetCase) -> None:
    logits = np.zeros((2, 70), dtype=np.float32)
    logits[:, 41] = logits[:, 67] = 1.0
    batch = batch_of([Row(temperature=0.0, logprobs=3), Row(temperature=0.0, allowed=frozenset({67, 69}))], 70)
    result = case.make("f32").sample(logits, batch)
    assert result.ids.tolist() == [41, 67]
    assert result.top_ids[0].tolist() == [41, 67, 0]


def test_nothing_allowed_gives_minus_one(case: OpSetCase) -> None:
    logits = np.zeros((3, 33), dtype=np.float32)
    banned = tuple((i, -math.inf) for i in range(33))
    rows = [Row(allowed=frozenset()), Row(adjust=banned, temperature=0.0), Row(allowed=frozenset({32}))]
    assert case.make("f32").sample(logits, batch_of(rows, 33)).ids.tolist() == [-1, -1, 32]


def test_nan_is_never_chosen(case: OpSetCase) -> None:
    logits = np.full((2, 8), np.nan, dtype=np.float32)
    logits[:, 5] = -3.0
    assert case.make("f32").sample(logits, batch_of([Row(temperature=0.0), Row()], 8)).ids.tolist() == [5, 5]


def test_logprobs_are_those_of_the_unmodified_logits(case: OpSetCase) -> None:
    rng = np.random.default_rng(2)
    logits = (rng.normal(size=(4, 500)) * 5).astype(np.float32)
    allowed = frozenset(rng.permutation(500)[:60].tolist())
    rows = [
        Row(temperature=0.0, logprobs=0),
        Row(temperature=2.0, adjust=((3, 50.0),), logprobs=5),
        Row(temperature=0.5, allowed=allowed, logprobs=2),
        Row(),
    ]
    result = case.make("f32").sample(logits, batch_of(rows, 500))
    logs = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    for i in range(3):
        assert result.raw[i] == pytest.approx(logs[i, result.ids[i]], abs=2e-6)
    assert result.ids[1] == 3
    inside = sorted(allowed)
    share = math.log(np.exp(logs[2, inside]).sum())
    assert result.masked[2] == pytest.approx(logs[2, result.ids[2]] - share, abs=2e-6)
    assert result.masked[:2] == pytest.approx(result.raw[:2], abs=1e-6)
    assert np.isnan(result.raw[3]) and np.isnan(result.masked[3])
    assert result.top_ids.shape == (4, 5)
    for i, count in ((0, 0), (1, 5), (2, 2), (3, 0)):
        best = np.argsort(-logits[i], kind="stable")[:count]
        assert result.top_ids[i].tolist() == [*best, *[-1] * (5 - count)]
        assert result.top_raw[i, :count] == pytest.approx(logs[i, best], abs=2e-6)


def test_scores_of_given_ids(case: OpSetCase) -> None:
    rng = np.random.default_rng(3)
    logits = (rng.normal(size=(3, 300)) * 4).astype(np.float32)
    ids = np.array([5, 299, 0], dtype=np.int32)
    chosen, top_ids, top = case.make("f32").token_logprobs(logits, ids, 2)
    logs = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    assert chosen == pytest.approx(logs[range(3), ids], abs=2e-6)
    assert top_ids.tolist() == np.argsort(-logits, axis=-1, kind="stable")[:, :2].tolist()
    assert top == pytest.approx(np.take_along_axis(logs, top_ids.astype(int), 1), abs=2e-6)


@settings(max_examples=40, deadline=None)
@given(batch=st.lists(rows, min_size=2, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_a_row_does_not_depend_on_its_batch(case: OpSetCase, batch: list[Row], seed: int) -> None:
    logits = (np.random.default_rng(seed).normal(size=(len(batch), 2000)) * 4).astype(np.float32)
    ops = case.make("f32")
    together = ops.sample(logits, batch_of(batch, 2000))
    for i, row in enumerate(batch):
        alone = ops.sample(logits[i : i + 1].copy(), batch_of([row], 2000))
        assert alone.ids[0] == together.ids[i]
        for field in ("raw", "masked"):
            assert getattr(alone, field).tobytes() == getattr(together, field)[i : i + 1].tobytes()
