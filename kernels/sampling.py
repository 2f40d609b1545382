"""Sampling in numpy, for op sets that have none of their own; the order of operations is that of ``SampleBatch``.

Everything is computed row by row from that row alone, sums in float64, so a batch changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from ramet.kernels.ops import SampleBatch, SampleResult
from ramet.runtime.protocol.randomness import uniform

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIRST_LOOK = 256
"""Candidates that are sorted first; nearly always the drawn id is among them, and the rest need not be sorted."""


def log_normaliser(logits: Floats) -> float:
    """log of the sum of exp(logits), in float64; -inf for a row with nothing in it."""
    high = float(logits.max(initial=-np.inf))
    if not np.isfinite(high):
        return -np.inf
    return high + float(np.log(np.exp(logits.astype(np.float64) - high).sum()))


def best_ids(values: NDArray[np.floating], count: int) -> Ints:
    """The ``count`` greatest, in descending order, the lower id first on ties."""
    count = min(count, len(values))
    if count <= 0:
        return np.zeros(0, dtype=np.int64)
    if count == len(values):
        candidates = np.arange(count)
    else:
        least = np.partition(values, len(values) - count)[len(values) - count]
        candidates = np.flatnonzero(values >= least)
    order = np.argsort(-values[candidates], kind="stable")  # candidates ascend, so ties stay in order of ids
    return candidates[order[:count]]


def token_logprobs(logits: Floats, ids: NDArray[np.int32], top: int) -> tuple[Floats, NDArray[np.int32], Floats]:
    """Raw log-probabilities of ``ids`` [L] under ``logits`` [L, V], and the ``top`` best ids and values [L, top]."""
    rows = len(ids)
    chosen = np.empty(rows, dtype=np.float32)
    top_ids = np.full((rows, max(top, 0)), -1, dtype=np.int32)
    top_raw = np.full(top_ids.shape, np.nan, dtype=np.float32)
    for i in range(rows):
        norm = log_normaliser(logits[i])
        chosen[i] = logits[i, ids[i]] - norm
        if top > 0:
            best = best_ids(logits[i], top)
            top_ids[i, : len(best)] = best
            top_raw[i, : len(best)] = logits[i, best] - norm
    return chosen, top_ids, top_raw


def sample(logits: Floats, batch: SampleBatch) -> SampleResult:
    """``logits`` float32 [L, V]. NaN logits are never chosen. See ``SampleBatch`` and ``SampleResult``."""
    rows = len(batch.temperature)
    width = int(batch.logprobs.max(initial=0))
    ids = np.full(rows, -1, dtype=np.int32)
    raw, masked = np.full(rows, np.nan, dtype=np.float32), np.full(rows, np.nan, dtype=np.float32)
    top_ids = np.full((rows, width), -1, dtype=np.int32)
    top_raw = np.full((rows, width), np.nan, dtype=np.float32)
    for i in range(rows):
        allowed = _allowed(batch, i, logits.shape[1])
        values = _adjusted(logits[i], batch, i)
        if allowed is not None:
            values = np.where(allowed, values, np.float32(-np.inf))
        ids[i] = _choose(values, batch, i)
        wanted = int(batch.logprobs[i])
        if wanted < 0:
            continue
        norm = log_normaliser(logits[i])
        if ids[i] >= 0:
            raw[i] = logits[i, ids[i]] - norm
            within = norm if allowed is None else log_normaliser(logits[i][allowed])
            masked[i] = logits[i, ids[i]] - within
        best = best_ids(logits[i], wanted)
        top_ids[i, : len(best)] = best
        top_raw[i, : len(best)] = logits[i, best] - norm
    return SampleResult(ids, raw, masked, top_ids, top_raw)


def _allowed(batch: SampleBatch, i: int, width: int) -> NDArray[np.bool_] | None:
    """Ids that the row's mask lets through; None without a mask."""
    if batch.mask is None or (batch.masked is not None and not batch.masked[i]):
        return None
    words = np.ascontiguousarray(batch.mask[i], dtype="<u4").view(np.uint8)
    return np.unpackbits(words, bitorder="little", count=width).view(np.bool_)


def _adjusted(logits: Floats, batch: SampleBatch, i: int) -> Floats:
    """Logits with repetition penalty, then additive changes."""
    result = logits
    if batch.scale_start is not None and batch.scale_ids is not None and batch.scale_values is not None:
        part = slice(batch.scale_start[i], batch.scale_start[i + 1])
        ids, factors = batch.scale_ids[part], batch.scale_values[part]
        if len(ids):
            result = result.copy()
            old = result[ids]
            result[ids] = np.where(old > 0, old / factors, old * factors)
    if batch.adjust_start is not None and batch.adjust_ids is not None and batch.adjust_values is not None:
        part = slice(batch.adjust_start[i], batch.adjust_start[i + 1])
        ids, changes = batch.adjust_ids[part], batch.adjust_values[part]
        if len(ids):
            result = result.copy() if result is logits else result
            np.add.at(result, ids, changes)
    if np.isnan(result).any():
        result = np.where(np.isnan(result), np.float32(-np.inf), result)
    return result


def _choose(values: Floats, batch: SampleBatch, i: int) -> int:
    greedy = int(values.argmax())  # the first of equals
    if np.isneginf(values[greedy]):
        return -1
    temperature = float(batch.temperature[i])
    top_k = int(batch.top_k[i])
    if temperature <= 0 or top_k == 1 or np.isposinf(values[greedy]):
        return greedy
    number = uniform(int(batch.key[i]), int(batch.position[i]))
    return _draw(values, temperature, top_k, float(batch.top_p[i]), float(batch.min_p[i]), number)


def _draw(values: Floats, temperature: float, top_k: int, top_p: float, min_p: float, number: float) -> int:
    """The id that ``number`` in [0, 1) falls on, among those that the filters keep."""
    scaled = (values.astype(np.float64) - float(values.max())) / temperature
    if 0 < top_k < len(values):
        order = best_ids(scaled, top_k)
        weights = np.exp(scaled[order])
        return _among(order, weights, float(weights.sum()), True, top_p, min_p, number)
    everything = float(np.exp(scaled).sum())
    look = _FIRST_LOOK
    while True:
        order = best_ids(scaled, look)
        complete = len(order) == len(values)
        found = _among(order, np.exp(scaled[order]), everything, complete, top_p, min_p, number)
        if found >= 0:
            return found
        look *= 16


def _among(
    order: Ints, weights: Doubles, everything: float, complete: bool, top_p: float, min_p: float, number: float
) -> int:
    """Draw from ids in descending ``weights`` (unnormalised, ``everything`` is their sum over all ids). ``complete``:
    ``order`` holds all ids; otherwise it is a beginning, and -1 says that the answer may lie behind it."""
    sums = np.cumsum(weights)
    keep, cut = len(order), False
    if top_p < 1.0:
        reached = int(np.searchsorted(sums, top_p * everything, side="left"))  # the first whose sum is at least that
        if reached < keep:
            keep, cut = reached + 1, True
    if min_p > 0.0:
        strong = int(np.count_nonzero(weights >= min_p * weights[0]))
        if strong < keep:
            keep, cut = strong, True
    filtered = top_p < 1.0 or min_p > 0.0
    if filtered and not cut and not complete:
        return -1
    whole = float(sums[keep - 1]) if cut else everything
    place = int(np.searchsorted(sums[:keep], number * whole, side="right"))  # the first whose sum exceeds it
    if place < keep:
        return int(order[place])
    if not (cut or complete):
        return -1
    return int(order[int(np.count_nonzero(weights[:keep])) - 1])  # rounding left the number above the last sum
