"""Types of the compiled module (sources in ``cpp/``)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VERSION: int
"""Of the numerics."""
LAYOUT: int
"""Of packed weights."""

def lanes() -> list[str]: ...
def allocate(bytes: int) -> NDArray[np.uint8]: ...
def map_file(path: str) -> NDArray[np.uint8]:
    """The bytes of a file, read only. Raises RuntimeError if it is not there or empty."""

class Engine:
    lane: str
    threads: int
    def __init__(self, isa: str, threads: int) -> None: ...
    def packed_bytes(self, kind: str, n: int, k: int) -> int: ...
    def pack(self, kind: str, n: int, k: int, raw: NDArray[np.uint8], to: NDArray[np.uint8]) -> None: ...
    def checksum(self, array: NDArray[np.uint8]) -> int:
        """A number that changes with any byte of ``array``, and with their order."""

    def read(self, array: NDArray[np.uint8]) -> int:
        """Reads all of ``array`` on all threads (a measure of bandwidth) and returns the sum of its 8-byte words."""

    def sample(
        self,
        logits: NDArray[np.float32],
        temperature: NDArray[np.float32],
        top_p: NDArray[np.float32],
        top_k: NDArray[np.int32],
        min_p: NDArray[np.float32],
        key: NDArray[np.uint64],
        position: NDArray[np.int64],
        logprobs: NDArray[np.int32],
        mask: NDArray[np.uint32] | None,
        masked: NDArray[np.bool_] | None,
        adjust_start: NDArray[np.int32] | None,
        adjust_ids: NDArray[np.int32] | None,
        adjust_values: NDArray[np.float32] | None,
        scale_start: NDArray[np.int32] | None,
        scale_ids: NDArray[np.int32] | None,
        scale_values: NDArray[np.float32] | None,
        ids: NDArray[np.int32],
        raw: NDArray[np.float32],
        raw_masked: NDArray[np.float32],
        top_ids: NDArray[np.int32],
        top_raw: NDArray[np.float32],
        top: int,
    ) -> None: ...
    def token_logprobs(
        self,
        logits: NDArray[np.float32],
        ids: NDArray[np.int32],
        top: int,
        values: NDArray[np.float32],
        top_ids: NDArray[np.int32],
        top_values: NDArray[np.float32],
    ) -> None: ...

class Weight:
    shape: tuple[int, int]
    form: str
    """What a matmul reads its activations in: float, int8 or bf16."""

    def __init__(self, engine: Engine, kind: str, n: int, k: int, packed: NDArray[np.uint8]) -> None: ...
    def row(self, row: int, to: NDArray[np.float32]) -> None: ...

class Kv:
    layers: int
    blocks: int
    block: int
    heads: int
    width: int
    def __init__(
        self,
        engine: Engine,
        kv_dtype: str,
        layers: int,
        blocks: int,
        block: int,
        heads: int,
        width: int,
        memory: NDArray[np.uint8],
    ) -> None: ...
    @staticmethod
    def bytes(engine: Engine, kv_dtype: str, layers: int, blocks: int, block: int, heads: int, width: int) -> int: ...
    def copy(self, source: NDArray[np.int32], target: NDArray[np.int32], tokens: NDArray[np.int32]) -> None: ...
    def read(
        self, layer: int, block: int, slot: int, head: int, k: NDArray[np.float32], v: NDArray[np.float32]
    ) -> None: ...

class Program:
    def __init__(self, engine: Engine) -> None: ...
    def value(self, width: int, wanted: bool) -> int: ...
    def also(self, value: int, form: str) -> None: ...
    def rope(self, inv_freq: NDArray[np.float32], interleaved: bool) -> int: ...
    def result(self, value: int, vocabulary: int, heads_per_kv: int, kv_width: int) -> None: ...
    def embed(self, table: Weight, factor: float, to: int) -> None: ...
    def norm(self, x: int, weight: Weight, size: int, eps: float, to: int) -> None: ...
    def convert(self, x: int) -> None: ...
    def matmul(self, x: int, weight: Weight, to: int, accumulate: bool) -> None: ...
    def gate_up(self, x: int, gate: Weight, up: Weight, to: int) -> None: ...
    def qkv(
        self, x: int, weights: Sequence[Weight], biases: Sequence[Weight], rope: int, head_dim: int, layer: int, q: int
    ) -> None: ...
    def rotate(self, x: int, to: int, heads: int, rope: int) -> None: ...
    def store(self, k: int, v: int, layer: int) -> None: ...
    def attention(self, q: int, layer: int, heads: int, scale: float, window: int, to: int) -> None: ...
    def add(self, a: int, b: int, to: int) -> None: ...
    def silu_mul(self, gate: int, up: int, to: int) -> None: ...
    def gelu_mul(self, gate: int, up: int, to: int) -> None: ...
    def bias(self, x: int, vector: Weight, to: int) -> None: ...
    def take_rows(self, x: int, to: int) -> None: ...
    def profile(self, on: bool) -> dict[str, float]:
        """Seconds per kind of step since the last call; switches profiling on or off."""

    def run(
        self,
        ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        row_start: NDArray[np.int32],
        context: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
        groups: Sequence[tuple[NDArray[np.int32], int, int]],
        kv: Kv,
    ) -> NDArray[np.float32]: ...
