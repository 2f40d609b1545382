"""Weights as the C++ kernels read them: repacked in tiles of 16 output columns, values exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ramet.kernels import _cpu
from ramet.kernels.ops import QuantTensor


@dataclass(frozen=True)
class PackedWeight:
    """``shape``: (out, in), or (n, 1) for a vector; ``native``: the C++ side's view of the packed bytes."""

    shape: tuple[int, int]
    native: _cpu.Weight
    name: str

    @property
    def form(self) -> str:
        """What a matmul with it reads its activations in: float, int8 or bf16."""
        return self.native.form


def packed_shape(tensor: QuantTensor) -> tuple[int, int]:
    if len(tensor.shape) not in (1, 2):
        raise ValueError(f"weight {tensor.name} has shape {tensor.shape}: only matrices and vectors are supported")
    return (tensor.shape[0], 1) if len(tensor.shape) == 1 else (tensor.shape[0], tensor.shape[1])


@dataclass
class Arena:
    """Memory of packed weights, in few large pages: to read them is what decoding costs."""

    chunk: int = 32 << 20
    _memory: NDArray[np.uint8] | None = None
    _used: int = 0

    def take(self, size: int) -> NDArray[np.uint8]:
        """``size`` bytes that begin on a cache line."""
        start = -(-self._used // 64) * 64
        if self._memory is None or start + size > len(self._memory):
            self._memory = _cpu.allocate(max(self.chunk, size))
            start = 0
        self._used = start + size
        return self._memory[start : start + size]


def pack(engine: _cpu.Engine, tensor: QuantTensor, arena: Arena) -> NDArray[np.uint8]:
    """The packed bytes of ``tensor``. A vector is kept as float32."""
    shape = packed_shape(tensor)
    kind, raw = tensor.kind, np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8)
    if len(tensor.shape) == 1 and kind in ("F16", "BF16"):
        halves = raw.view(np.uint16)
        wide = halves.view(np.float16).astype(np.float32) if kind == "F16" else (halves.astype(np.uint32) << 16)
        kind, raw = "F32", wide.view(np.uint8)
    target = arena.take(engine.packed_bytes(kind, *shape))
    engine.pack(kind, *shape, raw, target)
    return target


def wrap(engine: _cpu.Engine, tensor: QuantTensor, packed: NDArray[np.uint8]) -> PackedWeight:
    shape = packed_shape(tensor)
    kind = "F32" if len(tensor.shape) == 1 else tensor.kind
    return PackedWeight(shape, _cpu.Weight(engine, kind, *shape, packed), tensor.name)
