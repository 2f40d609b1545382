"""The runner that computes: a model's program, its KV pool, and the op set they run on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from ramet.kernels.ops import Batch, OpSet, SampleBatch, SampleResult
from ramet.runtime.constrain.base import CompiledConstraint
from ramet.runtime.protocol.config import RuntimeConfig, WorkerConfig
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.messages import ConstraintSpec
from ramet.runtime.store import ModelFolder

from .constraints import Compile
from .memory import available_bytes, pool_blocks
from .models import Model, load_model

log = logging.getLogger(__name__)

KV_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "int8": 1}


class ModelRunner:
    """A Runner. ``kv_tokens`` 0: sized from free memory, after the weights are loaded."""

    def __init__(
        self,
        folder: ModelFolder,
        ops: OpSet,
        model: Model,
        token_bytes: Sequence[bytes],
        *,
        kv_tokens: int,
        block_size: int,
    ) -> None:
        meta = folder.meta
        self._ops = ops
        self._model = model
        kv_dtype = getattr(ops, "kv_dtype", "f32")
        per_token = 2 * meta.layers * meta.kv_heads * meta.head_dim * KV_BYTES[kv_dtype]
        if kv_dtype == "int8":
            per_token += 2 * meta.layers * meta.kv_heads * 4  # one scale per token and head
        self.blocks = pool_blocks(kv_tokens, block_size, per_token, available_bytes())
        self.block_size = block_size
        self._kv = ops.kv_cache(meta.layers, self.blocks, block_size, meta.kv_heads, meta.head_dim)
        self.vocab_size = meta.vocab_size
        self.end_ids = tuple(meta.end_ids)
        self.token_bytes = token_bytes
        self.fingerprint = f"{meta.sha256[:16]}/{ops.fingerprint()}"
        log.info("KV pool: %d tokens, %.0f MiB", self.blocks * block_size, self.blocks * block_size * per_token / 2**20)

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._model.program.run(batch, self._kv)
        return logits

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleResult:
        return self._ops.sample(logits, batch)

    def token_logprobs(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], top: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        return self._ops.token_logprobs(logits, ids, top)

    def copy_blocks(self, source: NDArray[np.int32], target: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        self._ops.copy_blocks(self._kv, source, target, tokens)


def _op_set(config: WorkerConfig) -> OpSet:
    from ramet.kernels import select

    try:
        return select(config)
    except ValueError as error:  # what was asked for is not there
        raise RametError(str(error)) from error


def build_model(config: RuntimeConfig) -> tuple[ModelRunner, Compile]:
    """Load what the configuration names. Raises ModelNotFound, or what a missing library raises.

    The compiler of constraints takes longer to come up than all the rest: it does so at its first use.
    """
    from ramet.runtime import store
    from ramet.runtime.tokenizer import Tokenizer

    folder = store.open(Path(config.model))
    ops = _op_set(config.worker)
    model = load_model(folder, ops)
    tokenizer = Tokenizer.load(folder)

    def compile_spec(spec: ConstraintSpec) -> CompiledConstraint:
        from ramet.runtime import constrain

        return constrain.compile(spec, tokenizer=tokenizer)

    runner = ModelRunner(
        folder,
        ops,
        model,
        tokenizer.token_table,
        kv_tokens=config.worker.kv_tokens,
        block_size=config.scheduler.block_size,
    )
    return runner, compile_spec
