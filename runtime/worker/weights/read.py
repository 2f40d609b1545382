"""One view of a model's tensors, under GGUF's names (``blk.0.attn_q.weight``); those of safetensors are translated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from ramet.kernels.dequantise import dequantise
from ramet.kernels.ops import QuantTensor
from ramet.runtime.protocol.errors import InvalidModel
from ramet.runtime.store import ModelFolder
from ramet.runtime.store.gguf import read_gguf
from ramet.runtime.worker.weights.safetensors import read_safetensors

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_PERMUTED = ("llama", "smollm3")
"""Architectures whose GGUF files order query and key rows for neighbouring pairs."""
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True)
class Weights:
    """``permuted``: rows of the query and key projections are ordered for rotation of neighbouring pairs."""

    tensors: dict[str, QuantTensor]
    permuted: bool
    source: str

    def get(self, name: str, shape: tuple[int, ...]) -> QuantTensor:
        """Raises InvalidModel if the tensor is missing or of another shape."""
        tensor = self.optional(name, shape)
        if tensor is None:
            raise InvalidModel(
                f"{self.source} has no tensor {name!r}: it is not whole, or not of the stated architecture."
            )
        return tensor

    def optional(self, name: str, shape: tuple[int, ...]) -> QuantTensor | None:
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            raise InvalidModel(f"{self.source}: tensor {name!r} has shape {tensor.shape}, expected {shape}.")
        return tensor


def open_weights(folder: ModelFolder) -> Weights:
    """The tensors of a prepared model, mapped from disk. Raises InvalidModel for damaged or unsupported files."""
    source = ", ".join(str(path) for path in folder.weights)
    if folder.weights[0].suffix == ".gguf":
        path = folder.weights[0]
        data = np.memmap(path, dtype=np.uint8, mode="r")
        tensors = {
            info.name: QuantTensor(info.kind, info.shape, data[info.offset : info.offset + info.size], info.name)
            for info in read_gguf(path, arrays=False).tensors.values()
        }
        return Weights(tensors, permuted=folder.meta.architecture in _PERMUTED, source=source)
    found: dict[str, QuantTensor] = {}
    gemma = folder.meta.architecture == "gemma3"
    for path in folder.weights:
        for name, tensor in read_safetensors(path).items():
            if known := _gguf_name(name, _GEMMA_LAYER if gemma else _LAYER):
                found[known] = _plus_one(tensor) if gemma and known.endswith("norm.weight") else tensor
    return Weights(found, permuted=False, source=source)


def _gguf_name(name: str, layer: Mapping[str, str]) -> str | None:
    """None for tensors that a decoder does not use (stored rotary tables, say)."""
    if name in _TOP:
        return _TOP[name]
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in layer:
        return None
    return f"blk.{match[1]}.{layer[match[2]]}.{match[3]}"


def _plus_one(tensor: QuantTensor) -> QuantTensor:
    """Gemma's own files state norms less 1."""
    values = dequantise(tensor) + np.float32(1)
    return QuantTensor("F32", tensor.shape, values.view(np.uint8), tensor.name)
