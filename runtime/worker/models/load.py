"""From a prepared model folder to a runnable program."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.kernels.dequantise import dequantise
from ramet.kernels.ops import OpSet, Program, RopeSpec
from ramet.runtime.protocol.errors import InvalidModel
from ramet.runtime.store import ModelFolder, ModelMeta, RopeMeta
from ramet.runtime.worker.models.decoder import Decoder, Ropes
from ramet.runtime.worker.models.rope import inverse_frequencies
from ramet.runtime.worker.weights import Weights, open_weights

ARCHITECTURES = ("llama", "smollm3", "qwen2", "qwen3", "gemma3")


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
    with ops.keeping(folder.path, meta.sha256):
        decoder = Decoder.load(meta, weights, ops, _ropes(meta, weights))
    return Model(meta, ops.compile(decoder.forward))


def _ropes(meta: ModelMeta, weights: Weights) -> Ropes:
    factors = weights.optional("rope_freqs.weight", (meta.head_dim // 2,))  # GGUF states llama3's scaling this way

    def spec(rope: RopeMeta) -> RopeSpec:
        frequencies = inverse_frequencies(rope, meta.head_dim)
        scaled = frequencies if factors is None else frequencies / dequantise(factors)
        return RopeSpec(scaled, interleaved=weights.permuted)

    whole = spec(meta.rope)
    return Ropes(whole, whole if meta.local_rope is None else spec(meta.local_rope))
