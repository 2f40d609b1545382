"""The Llama decoder (SmolLM2, Llama, Mistral, and with biases Qwen2), from its metadata."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.kernels.ops import Ops, OpSet, Ref, RopeSpec, Weight
from ramet.runtime.store import ModelMeta
from ramet.runtime.worker.weights import Weights


@dataclass(frozen=True)
class Linear:
    weight: Weight
    bias: Weight | None

    def __call__(self, ops: Ops, x: Ref) -> Ref:
        y = ops.matmul(x, self.weight)
        return y if self.bias is None else ops.bias(y, self.bias)


@dataclass(frozen=True)
class Layer:
    attention_norm: Weight
    q: Linear
    k: Linear
    v: Linear
    output: Linear
    ffn_norm: Weight
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Llama:
    """Weights as the op set keeps them, and the forward pass over them."""

    meta: ModelMeta
    rope: RopeSpec
    table: Weight
    layers: tuple[Layer, ...]
    norm: Weight
    head: Weight

    @staticmethod
    def load(meta: ModelMeta, weights: Weights, ops: OpSet, rope: RopeSpec) -> Llama:
        """Raises InvalidModel if a tensor is missing or of the wrong shape."""
        width, ffn = meta.width, meta.ffn
        q_width, kv_width = meta.heads * meta.head_dim, meta.kv_heads * meta.head_dim

        def vector(name: str) -> Weight:
            return ops.weight(weights.get(f"{name}.weight", (width,)))

        def linear(name: str, outputs: int, inputs: int) -> Linear:
            bias = weights.optional(f"{name}.bias", (outputs,))
            matrix = ops.weight(weights.get(f"{name}.weight", (outputs, inputs)))
            return Linear(matrix, None if bias is None else ops.weight(bias))

        def layer(index: int) -> Layer:
            at = f"blk.{index}."
            return Layer(
                attention_norm=vector(at + "attn_norm"),
                q=linear(at + "attn_q", q_width, width),
                k=linear(at + "attn_k", kv_width, width),
                v=linear(at + "attn_v", kv_width, width),
                output=linear(at + "attn_output", width, q_width),
                ffn_norm=vector(at + "ffn_norm"),
                gate=linear(at + "ffn_gate", ffn, width),
                up=linear(at + "ffn_up", ffn, width),
                down=linear(at + "ffn_down", width, ffn),
            )

        table = ops.weight(weights.get("token_embd.weight", (meta.vocab_size, width)))
        head = table if meta.tied else ops.weight(weights.get("output.weight", (meta.vocab_size, width)))
        layers = tuple(layer(index) for index in range(meta.layers))
        return Llama(meta, rope, table, layers, vector("output_norm"), head)

    def forward(self, ops: Ops) -> Ref:
        """Logits of the wanted rows."""
        meta = self.meta
        scale = meta.head_dim**-0.5
        x = ops.embed(self.table)
        for index, layer in enumerate(self.layers):
            y = ops.rms_norm(x, layer.attention_norm, meta.eps)
            q = ops.rope(layer.q(ops, y), meta.heads, self.rope)
            k = ops.rope(layer.k(ops, y), meta.kv_heads, self.rope)
            ops.store_kv(k, layer.v(ops, y), index)
            x = ops.add(x, layer.output(ops, ops.attention(q, index, meta.heads, scale, meta.window)))
            y = ops.rms_norm(x, layer.ffn_norm, meta.eps)
            x = ops.add(x, layer.down(ops, ops.silu_mul(layer.gate(ops, y), layer.up(ops, y))))
        x = ops.rms_norm(ops.take_rows(x), self.norm, meta.eps)
        return ops.matmul(x, self.head)
