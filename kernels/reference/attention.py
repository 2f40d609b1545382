"""Attention over the paged cache: per tile of queries, segment by segment, merged left to right.

A tile is TILE consecutive tokens of one row that begins at an absolute position divisible by TILE, so the place of a
token in its tile, and every shape that it is computed in, follow from its position alone.

    positions   0        64       128      192
    segments    |   0    |   1    |   2    |
    tile         . . . . . . . . . . QQQQ         sees segments 0, 1 and a part of 2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from ramet.kernels.ops import SEGMENT, Batch
from ramet.kernels.reference.cache import PagedCache

TILE = 4


@dataclass(frozen=True)
class _Segment:
    """One segment of the first ``tiles`` tiles. ``slots``: [tiles, SEGMENT], ``stored``: which of them hold KV."""

    tiles: int
    slots: torch.Tensor
    stored: torch.Tensor


@dataclass(frozen=True)
class Plan:
    """Where the tokens of a batch stand in tiles, and which slots each tile reads: the same for all layers.

    ``rows``, ``places``: for each token of the batch its tile and its place there. ``positions``: [tiles, TILE], -1
    where there is no token. Tiles stand in descending number of segments: those that see segment s come first.
    """

    rows: torch.Tensor
    places: torch.Tensor
    positions: NDArray[np.int64]
    segments: tuple[_Segment, ...]


def slots_of(batch: Batch, block_size: int) -> NDArray[np.int64]:
    """[N]: the slot of each token of the batch."""
    row = np.repeat(np.arange(len(batch.context)), np.diff(batch.row_start))
    positions = batch.positions.astype(np.int64)
    return batch.block_tables[row, positions // block_size].astype(np.int64) * block_size + positions % block_size


def plan(batch: Batch, block_size: int) -> Plan:
    tokens = len(batch.ids)
    row = np.repeat(np.arange(len(batch.context)), np.diff(batch.row_start))
    positions = batch.positions.astype(np.int64)
    # tiles in the order of their tokens, then by descending number of segments (stable)
    key = np.stack([row, positions // TILE])
    starts = np.flatnonzero(np.any(np.diff(key, axis=1, prepend=-1) != 0, axis=0))
    tile_of = np.zeros(tokens, dtype=np.int64)
    tile_of[starts[1:]] = 1
    tile_of = np.cumsum(tile_of)
    last = positions[np.append(starts[1:], tokens) - 1]
    order = np.argsort(-(last // SEGMENT), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    table = np.full((len(starts), TILE), -1, dtype=np.int64)
    table[rank[tile_of], positions % TILE] = positions
    tile_row, last = row[starts][order], last[order]
    segments = []
    for start in range(0, int(last[0]) + 1 if len(last) else 0, SEGMENT):
        tiles = int(np.count_nonzero(last >= start))
        where = np.arange(start, start + SEGMENT)
        stored = where[None, :] < batch.context[tile_row[:tiles], None]
        block = np.where(stored, where[None, :] // block_size, 0)
        slots = batch.block_tables[tile_row[:tiles, None], block].astype(np.int64) * block_size + where % block_size
        segments.append(_Segment(tiles, torch.from_numpy(np.where(stored, slots, 0)), torch.from_numpy(stored)))
    return Plan(torch.from_numpy(rank[tile_of]), torch.from_numpy(positions % TILE), table, tuple(segments))


def attend(
    plan: Plan, cache: PagedCache, layer: int, q: torch.Tensor, heads: int, scale: float, window: int
) -> torch.Tensor:
    """``q``: float32 [N, H * E], tokens of the batch. The result has the same shape."""
    kv_heads, size = cache.k.shape[2:]
    group = heads // kv_heads
    tiles = len(plan.positions)
    tiled = torch.zeros((tiles, TILE, heads, size))
    tiled[plan.rows, plan.places] = q.reshape(-1, heads, size)
    # [tiles, G, TILE * group, E]: the queries that share a KV head are one matrix
    queries = tiled.reshape(tiles, TILE, kv_heads, group, size).transpose(1, 2).reshape(tiles, kv_heads, -1, size)
    queries = queries.contiguous()
    best = np.full((tiles, kv_heads, TILE * group), -np.inf, dtype=np.float32)
    total = np.zeros_like(best)
    output = torch.zeros((tiles, kv_heads, TILE * group, size))
    zero = torch.zeros(())
    for index, segment in enumerate(plan.segments):
        n = segment.tiles
        k, v = cache.load(layer, segment.slots)
        unwritten = ~segment.stored[:, :, None, None]
        k = torch.where(unwritten, zero, k).permute(0, 2, 3, 1).contiguous()  # [n, G, E, SEGMENT]
        v = torch.where(unwritten, zero, v).transpose(1, 2).contiguous()  # [n, G, SEGMENT, E]
        scores = torch.matmul(queries[:n], k).numpy() * np.float32(scale)
        visible = _visible(plan.positions[:n], index * SEGMENT, window)
        shape = (n, 1, TILE, 1, SEGMENT)
        masked = np.where(visible.reshape(shape), scores.reshape(n, kv_heads, TILE, group, SEGMENT), -np.inf)
        scores = masked.reshape(scores.shape)
        higher = np.maximum(best[:n], scores.max(-1))
        safe = np.where(np.isneginf(higher), np.float32(0), higher)
        weights = np.exp(scores - safe[..., None])
        fade = np.exp(best[:n] - safe)
        total[:n] = total[:n] * fade + weights.sum(-1)
        best[:n] = higher
        output[:n] = output[:n] * torch.from_numpy(fade)[..., None] + torch.matmul(torch.from_numpy(weights), v)
    divided = output / torch.from_numpy(np.where(total > 0, total, np.float32(1)))[..., None]
    back = divided.reshape(tiles, kv_heads, TILE, group, size).transpose(1, 2).reshape(tiles, TILE, heads * size)
    return back[plan.rows, plan.places]


def _visible(positions: NDArray[np.int64], start: int, window: int) -> NDArray[np.bool_]:
    """[tiles, TILE, SEGMENT]: which keys of the segment at ``start`` each query may see."""
    keys = np.arange(start, start + SEGMENT)
    seen: NDArray[np.bool_] = keys <= positions[:, :, None]
    if window > 0:
        seen &= keys > positions[:, :, None] - window
    return seen
