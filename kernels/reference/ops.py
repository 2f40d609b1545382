"""The reference op set and its eager programs.

Why a token's result does not depend on its batch: activations are padded to whole tiles of rows, and matmul runs tile
by tile, so each row meets the same shapes whatever stands beside it. exp, silu and sums over a row are numpy's,
whose inner loops treat all elements of an array alike (torch's vector loop and scalar tail differ in the last bit).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from ramet.kernels import sampling
from ramet.kernels.dequantise import dequantise
from ramet.kernels.ops import Batch, Forward, QuantTensor, RopeSpec, SampleBatch, SampleResult
from ramet.kernels.reference.attention import Plan, attend, plan, slots_of
from ramet.kernels.reference.cache import DTYPES, PagedCache
from ramet.kernels.reference.matmul import TiledMatmul, padded, single_threaded

VERSION = 2


@dataclass(frozen=True)
class _Step:
    """One run: implements ``Ops`` on torch tensors whose rows are padded to whole tiles."""

    multiply: TiledMatmul
    batch: Batch
    cache: PagedCache
    positions: NDArray[np.int64]  # [padded N]
    slots: torch.Tensor  # [N]
    plan: Plan

    @staticmethod
    def of(multiply: TiledMatmul, batch: Batch, cache: PagedCache) -> _Step:
        positions = np.zeros(padded(len(batch.ids)), dtype=np.int64)
        positions[: len(batch.ids)] = batch.positions
        slots = torch.from_numpy(slots_of(batch, cache.block_size))
        return _Step(multiply, batch, cache, positions, slots, plan(batch, cache.block_size))

    @property
    def tokens(self) -> int:
        return len(self.batch.ids)

    def embed(self, table: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        ids = np.zeros(len(self.positions), dtype=np.int64)
        ids[: self.tokens] = self.batch.ids
        rows = table[torch.from_numpy(ids)]
        return rows if factor == 1.0 else rows * float(np.float32(factor))

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if len(weight) < x.shape[-1]:
            return self.rms_norm(x.reshape(-1, len(weight)), weight, eps).reshape(x.shape)
        values = x.numpy()
        mean = np.add.reduce(values * values, axis=-1, dtype=np.float32) / np.float32(values.shape[-1])
        return x * torch.from_numpy(1 / np.sqrt(mean + np.float32(eps)))[:, None] * weight

    def matmul(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.multiply(x, weight)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        with np.errstate(over="ignore"):  # exp of a large negative gate is inf, and the quotient 0, as it should be
            return gate / torch.from_numpy(1 + np.exp(-gate.numpy())) * up

    def gelu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        x = gate.numpy()
        with np.errstate(over="ignore"):
            inner = np.float32(-2 * (2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
            return gate / torch.from_numpy(1 + np.exp(inner)) * up

    def bias(self, x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        return x + vector

    def rope(self, x: torch.Tensor, heads: int, spec: RopeSpec) -> torch.Tensor:
        angles = self.positions.astype(np.float32)[:, None, None] * spec.inv_freq[None, None, :]
        cos, sin = torch.from_numpy(np.cos(angles)), torch.from_numpy(np.sin(angles))
        split = x.reshape(len(x), heads, -1)
        if spec.interleaved:
            a, b = split[..., 0::2], split[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).reshape(x.shape)
        a, b = split.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).reshape(x.shape)

    def store_kv(self, k: torch.Tensor, v: torch.Tensor, layer: int) -> None:
        shape = (self.tokens, *self.cache.k.shape[2:])
        self.cache.store(layer, self.slots, k[: self.tokens].reshape(shape), v[: self.tokens].reshape(shape))

    def attention(self, q: torch.Tensor, layer: int, heads: int, scale: float, window: int = 0) -> torch.Tensor:
        out = torch.zeros_like(q)
        out[: self.tokens] = attend(self.plan, self.cache, layer, q[: self.tokens], heads, scale, window)
        return out

    def take_rows(self, x: torch.Tensor) -> torch.Tensor:
        wanted = self.batch.logit_rows
        rows = np.zeros(padded(len(wanted)), dtype=np.int64)
        rows[: len(wanted)] = wanted
        return x[torch.from_numpy(rows)]


@dataclass(frozen=True)
class _EagerProgram:
    forward: Callable[[_Step], torch.Tensor]
    multiply: TiledMatmul

    def run(self, batch: Batch, kv: PagedCache) -> NDArray[np.float32]:
        single_threaded()
        with torch.inference_mode():
            logits: NDArray[np.float32] = self.forward(_Step.of(self.multiply, batch, kv)).numpy()
        return logits[: len(batch.logit_rows)]


class ReferenceOps:
    """``kv_dtype``: f32, bf16, f16 or int8. ``threads``: of matmul; 0: one per core."""

    name = "reference"

    def __init__(self, kv_dtype: str = "f32", threads: int = 0) -> None:
        if kv_dtype not in DTYPES:
            raise ValueError(f"kv_dtype is {kv_dtype!r}; possible are {', '.join(DTYPES)}")
        self.kv_dtype = kv_dtype
        self._multiply = TiledMatmul(threads)

    def fingerprint(self) -> str:
        lane = torch.backends.cpu.get_cpu_capability()
        return f"reference-{VERSION}/torch-{torch.__version__}/{lane}/kv-{self.kv_dtype}"

    def keeping(self, folder: Path, key: str) -> AbstractContextManager[None]:
        return nullcontext()

    def weight(self, tensor: QuantTensor) -> torch.Tensor:
        """float32 in memory, whatever the file's kind."""
        values = dequantise(tensor)
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    def kv_cache(self, layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int) -> PagedCache:
        return PagedCache.make(layers, blocks, block_size, kv_heads, head_dim, self.kv_dtype)

    def copy_blocks(
        self, kv: PagedCache, source: NDArray[np.int32], target: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> None:
        offsets = np.concatenate([np.arange(count) for count in tokens]) if len(tokens) else np.zeros(0, dtype=np.int64)
        spread = [
            torch.from_numpy(np.repeat(b, tokens).astype(np.int64) * kv.block_size + offsets) for b in (source, target)
        ]
        kv.copy(*spread)

    def compile(self, forward: Forward) -> _EagerProgram:
        return _EagerProgram(forward, self._multiply)

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleResult:
        return sampling.sample(logits, batch)

    def token_logprobs(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], top: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        return sampling.token_logprobs(logits, ids, top)
