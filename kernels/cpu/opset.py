"""``CpuOps``: the op set of the C++ kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ramet.kernels import _cpu
from ramet.kernels.cpu.kept import KeptWeights, WeightWriter, kept_path, open_kept
from ramet.kernels.cpu.lower import lower
from ramet.kernels.cpu.record import Recorder, Symbol
from ramet.kernels.cpu.weights import Arena, PackedWeight, pack, wrap
from ramet.kernels.ops import Batch, Forward, QuantTensor, SampleBatch, SampleResult


class CpuProgram:
    """A recorded forward pass. One call of ``run`` computes a whole step with the GIL released."""

    def __init__(self, native: _cpu.Program) -> None:
        self.native = native

    def run(self, batch: Batch, kv: _cpu.Kv) -> NDArray[np.float32]:
        """Logits [L, V]; the array is valid until the next run."""
        return self.native.run(
            _int32(batch.ids),
            _int32(batch.positions),
            _int32(batch.row_start),
            _int32(batch.context),
            _int32(batch.block_tables),
            _int32(batch.logit_rows),
            [(_int32(group.rows), int(group.start), int(group.stop)) for group in batch.groups],
            kv,
        )


@dataclass
class CpuOps:
    """``isa``: auto, or a lane of ``lanes()``; ``kv_dtype``: f32, bf16, f16 or int8; ``threads``: 0 for one per core.

    Raises ValueError for an ISA that this machine can't run.
    """

    isa: str = "auto"
    kv_dtype: str = "bf16"
    threads: int = 0
    name: str = "cpu"

    def __post_init__(self) -> None:
        if self.kv_dtype not in ("f32", "bf16", "f16", "int8"):
            raise ValueError(f"kv_dtype {self.kv_dtype!r} is not known: use f32, bf16, f16 or int8")
        self._engine = _cpu.Engine(self.isa, self.threads)
        self._arena = Arena()
        self._kept: KeptWeights | None = None
        self._writer: WeightWriter | None = None
        self.isa = self._engine.lane
        self.threads = self._engine.threads

    def fingerprint(self) -> str:
        return f"cpu-{_cpu.VERSION}-{self.isa}-kv-{self.kv_dtype}"

    @contextmanager
    def keeping(self, folder: Path, key: str) -> Iterator[None]:
        path = kept_path(folder, self._engine)
        self._kept = open_kept(self._engine, path, key)
        self._writer = None if self._kept else WeightWriter(path, key)
        try:
            yield
            if self._writer is not None:
                self._writer.write(self._engine)
        finally:
            self._kept = self._writer = None

    def weight(self, tensor: QuantTensor) -> PackedWeight:
        packed = self._kept.find(tensor) if self._kept is not None else None
        if packed is None:
            packed = pack(self._engine, tensor, self._arena)
        if self._writer is not None:
            self._writer.add(tensor, packed)
        return wrap(self._engine, tensor, packed)

    def kv_cache(self, layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int) -> _cpu.Kv:
        shape = (self._engine, self.kv_dtype, layers, blocks, block_size, kv_heads, head_dim)
        return _cpu.Kv(*shape, _cpu.allocate(_cpu.Kv.bytes(*shape)))

    def copy_blocks(
        self, kv: _cpu.Kv, source: NDArray[np.int32], target: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> None:
        kv.copy(_int32(source), _int32(target), _int32(tokens))

    def compile(self, forward: Forward) -> CpuProgram:
        recorder = Recorder()
        result = forward(recorder)
        if not isinstance(result, Symbol):
            raise TypeError(f"forward must return the logits, not {type(result).__name__}")
        native = _cpu.Program(self._engine)
        lower(native, recorder.ops, result)
        return CpuProgram(native)

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleResult:
        rows = len(logits)
        top = max(0, int(batch.logprobs.max(initial=0)))
        out = SampleResult(
            ids=np.empty(rows, np.int32),
            raw=np.empty(rows, np.float32),
            masked=np.empty(rows, np.float32),
            top_ids=np.full((rows, top), -1, np.int32),
            top_raw=np.full((rows, top), np.nan, np.float32),
        )
        self._engine.sample(
            np.ascontiguousarray(logits, np.float32),
            batch.temperature,
            batch.top_p,
            batch.top_k,
            batch.min_p,
            batch.key,
            batch.position,
            batch.logprobs,
            batch.mask,
            batch.masked,
            batch.adjust_start,
            batch.adjust_ids,
            batch.adjust_values,
            batch.scale_start,
            batch.scale_ids,
            batch.scale_values,
            out.ids,
            out.raw,
            out.masked,
            out.top_ids,
            out.top_raw,
            top,
        )
        return out

    def token_logprobs(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], top: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        rows = len(logits)
        values = np.empty(rows, np.float32)
        top_ids, top_values = np.empty((rows, top), np.int32), np.empty((rows, top), np.float32)
        self._engine.token_logprobs(
            np.ascontiguousarray(logits, np.float32), _int32(ids), top, values, top_ids, top_values
        )
        return values, top_ids, top_values


def lanes() -> list[str]:
    """The instruction sets that this build has and this machine can run, best first."""
    return list(_cpu.lanes())


def _int32(array: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.ascontiguousarray(array, np.int32)
