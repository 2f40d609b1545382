"""From a prepared model folder to a runnable program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ramet.kernels.dequantise import dequantise
from ramet.kernels.ops import OpSet, Program, RopeSpec
from ramet.runtime.protocol.errors import InvalidModel
from ramet.runtime.store import ModelFolder, ModelMeta
from ramet.runtime.worker.models.llama import Llama
from ramet.runtime.worker.models.rope import inverse_frequencies
from ramet.runtime.worker.weights import Weights, open_weights

ARCHITECTURES = ("llama", "qwen2")


@dataclass(frozen=True)
class Model:
    """``config`` gives the sizes for ``OpSet.kv_cache``: layers, kv_heads, head_dim."""

    config: ModelMeta
    program: Program


def load_model(folder: ModelFolder, ops: OpSet) -> Model:
    """Raises InvalidModel for an unknown architecture and for files that are damaged, incomplete or not supported."""
    meta = folder.meta
    if meta.architecture not in ARCHITECTURES:
        raise InvalidModel(
            f"{meta.name} is of architecture {meta.architecture!r}; supported: {', '.join(ARCHITECTURES)}."
        )
    weights = open_weights(folder)
    rope = RopeSpec(_frequencies(meta, weights), interleaved=weights.permuted)
    with ops.keeping(folder.path, meta.sha256):
        llama = Llama.load(meta, weights, ops, rope)
    return Model(meta, ops.compile(llama.forward))


def _frequencies(meta: ModelMeta, weights: Weights) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    frequencies = inverse_frequencies(meta.rope, meta.head_dim)
    factors = weights.optional("rope_freqs.weight", (meta.head_dim // 2,))  # GGUF states llama3's scaling this way
    return frequencies if factors is None else frequencies / dequantise(factors)
