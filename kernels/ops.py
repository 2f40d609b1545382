"""The op set: what a model is written in, and the one contract that every implementation of kernels fulfils.

Notation: N tokens of a step (all rows concatenated), R rows, L wanted logit rows, V vocabulary size, D model width,
H query heads, G KV heads, E head size. Activations are float32 and row-major.

A model is a function ``forward(ops: Ops) -> Ref`` that calls ops and returns the logits. ``OpSet.compile`` turns it
into a ``Program``. An eager op set (torch reference) calls ``forward`` again for every step; a recording one (C++)
calls it once, keeps the list of ops, fuses what pays and runs the list in one call with the GIL released.

Batch invariance: each output row is computed in an order that depends on that row alone, whatever N, R, the chunking,
the grouping and the number of threads. Attention runs over segments of ``SEGMENT`` keys at absolute positions
[0, 64), [64, 128), ..., reads stored (rounded) KV only, its own step's included, and merges segments left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

SEGMENT = 64

Ref: TypeAlias = Any
"""A value inside ``forward``: a tensor (eager) or a symbol (recording). Models pass it between ops, nothing else."""

Weight: TypeAlias = Any
"""A weight as the op set keeps it (dequantised, or repacked for the ISA)."""

KVCache: TypeAlias = Any


@dataclass(frozen=True)
class QuantTensor:
    """A weight as its file stores it. ``kind``: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K.

    ``data``: uint8, the raw rows one after another (GGUF block layout for quantised kinds); ``shape``: (out, in),
    or (n,) for a vector. ``in`` is the fastest dimension.
    """

    kind: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    name: str = ""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding. ``interleaved``: pairs (2i, 2i+1), as GGUF llama weights are permuted for; else (i, i + E/2),
    as in safetensors. ``inv_freq``: float32 [E/2] (scaling of long-context variants already applied)."""

    inv_freq: NDArray[np.float32]
    interleaved: bool


@dataclass(frozen=True)
class GroupSpec:
    """Rows (indices into the batch) whose KV on absolute positions [start, stop) is the same storage; start and stop
    are multiples of SEGMENT. A hint: results are bit-equal with and without it."""

    rows: NDArray[np.int32]
    start: int
    stop: int


@dataclass(frozen=True)
class Batch:
    """What one step computes. Position p of row r lives in slot ``block_tables[r, p // B] * B + p % B``."""

    ids: NDArray[np.int32]  # [N]
    positions: NDArray[np.int32]  # [N] absolute
    row_start: NDArray[np.int32]  # [R + 1] first token of each row in ids
    context: NDArray[np.int32]  # [R] stored KV after this step: first position of the row in this step + its tokens
    block_tables: NDArray[np.int32]  # [R, max blocks], padded with 0
    logit_rows: NDArray[np.int32]  # [L] indices into ids
    groups: Sequence[GroupSpec] = field(default=())


class Ops(Protocol):
    """The ops a model may use. Every ``x`` is [N, D'] unless said otherwise."""

    def embed(self, table: Weight, factor: float = 1.0) -> Ref:
        """[N, D]: rows of ``table`` (V, D) at the batch's ids, times ``factor``."""

    def rms_norm(self, x: Ref, weight: Weight, eps: float) -> Ref:
        """x / sqrt(mean(x^2) + eps) * weight. A ``weight`` (E,) shorter than the rows: each run of E by itself."""

    def matmul(self, x: Ref, weight: Weight) -> Ref:
        """x @ weight.T: (N, in) and (out, in) give (N, out)."""

    def add(self, a: Ref, b: Ref) -> Ref: ...

    def silu_mul(self, gate: Ref, up: Ref) -> Ref:
        """silu(gate) * up."""

    def gelu_mul(self, gate: Ref, up: Ref) -> Ref:
        """gelu(gate) * up, gelu by its tanh formula: x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))."""

    def bias(self, x: Ref, vector: Weight) -> Ref:
        """x + vector, for families whose projections have one."""

    def rope(self, x: Ref, heads: int, spec: RopeSpec) -> Ref:
        """Rotate x (N, heads * E) at the batch's positions."""

    def store_kv(self, k: Ref, v: Ref, layer: int) -> None:
        """Round k, v (N, G * E) to the cache's type and store them in the batch's slots."""

    def attention(self, q: Ref, layer: int, heads: int, scale: float, window: int = 0) -> Ref:
        """Causal attention of q (N, H * E) over the stored KV of each token's row, positions 0 to its own (the last
        ``window`` of them if window > 0). Query head h reads KV head h // (H // G)."""

    def take_rows(self, x: Ref) -> Ref:
        """(L, D): the rows at ``batch.logit_rows``."""


Forward: TypeAlias = Callable[[Ops], Ref]


class Program(Protocol):
    def run(self, batch: Batch, kv: KVCache) -> NDArray[np.float32]:
        """Logits [L, V]; the array is valid until the next run."""


@dataclass(frozen=True)
class SampleBatch:
    """Sampling of L rows, parallel arrays. Order of operations per row: logits -> logit bias and penalties -> mask ->
    temperature -> top_k -> top_p -> min_p -> draw. temperature 0: argmax after mask, the lower id on ties.

    The draw: kept ids in descending probability (ties: lower id first), cumulative in float64, the first whose sum
    exceeds u * total, where u = uniform(key, position) of ``ramet.runtime.protocol.randomness``. Log-probabilities:
    ``raw`` is log softmax of the unmodified logits, ``masked`` the same over the masked-in ids; both accumulate in
    float64 in ascending id order, in chunks whose bounds do not depend on the batch.
    """

    temperature: NDArray[np.float32]  # [L]
    top_p: NDArray[np.float32]  # [L]
    top_k: NDArray[np.int32]  # [L] <= 0: off
    min_p: NDArray[np.float32]  # [L]
    key: NDArray[np.uint64]  # [L]
    position: NDArray[np.int64]  # [L] absolute position of the id to be drawn
    logprobs: NDArray[np.int32]  # [L] -1: none wanted, k >= 0: the chosen id's and the k best
    mask: NDArray[np.uint32] | None = None  # [L, ceil(V / 32)], bit t % 32 of word t // 32 set: id t allowed
    masked: NDArray[np.bool_] | None = None  # [L] which rows the mask applies to
    adjust_start: NDArray[np.int32] | None = None  # [L + 1] offsets into the next two: additive logit changes
    adjust_ids: NDArray[np.int32] | None = None
    adjust_values: NDArray[np.float32] | None = None  # bias, -penalties; -inf bans an id
    scale_start: NDArray[np.int32] | None = None  # [L + 1] offsets into the next two: repetition penalty
    scale_ids: NDArray[np.int32] | None = None
    scale_values: NDArray[np.float32] | None = None  # logit > 0: divided by it, else multiplied (before the additions)


@dataclass(frozen=True)
class SampleResult:
    ids: NDArray[np.int32]  # [L]; -1 where the mask left nothing
    raw: NDArray[np.float32]  # [L] nan where logprobs < 0
    masked: NDArray[np.float32]  # [L]
    top_ids: NDArray[np.int32]  # [L, K], K = max of logprobs (0 if none), -1 padded
    top_raw: NDArray[np.float32]  # [L, K]


class OpSet(Protocol):
    """One implementation of the kernels: ``reference`` (torch), ``cpu`` (C++), later ``gpu``."""

    name: str

    def fingerprint(self) -> str:
        """Name of the numerics: implementation, version, ISA lane, KV type. KV never crosses fingerprints."""

    def keeping(self, folder: Path, key: str) -> AbstractContextManager[None]:
        """Inside, ``weight`` is called for the weights of one model, of which ``key`` is a checksum, under different
        names. An op set that repacks them may keep the result in ``folder``, and need not read them the next time."""

    def weight(self, tensor: QuantTensor) -> Weight: ...

    def kv_cache(self, layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int) -> KVCache: ...

    def copy_blocks(
        self, kv: KVCache, source: NDArray[np.int32], target: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> None:
        """For each i copy the first tokens[i] slots of block source[i] to block target[i], all layers."""

    def compile(self, forward: Forward) -> Program: ...

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleResult: ...

    def token_logprobs(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], top: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """Prompt scoring: raw log-probability of ids[i] under logits[i]; the ``top`` best ids and values [L, top]."""
