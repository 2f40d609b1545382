"""The decoder of Llama and its relatives, from a model's metadata.

             Llama, SmolLM2, Mistral   SmolLM3            Qwen2        Qwen3             Gemma 3
projections  plain                     plain              q, k, v + b  plain             plain
q, k heads   -                         -                  -            norm              norm
rotation     all layers                3 of 4 layers      all          all               two bases
window       all or none               -                  some layers  some layers       5 of 6 layers
residual     x + f(norm x)             the same           the same     the same          x + norm f(norm x)
gate         silu                      silu               silu         silu              gelu
"""

from __future__ import annotations

from dataclasses import dataclass

from ramet.kernels.ops import Ops, OpSet, Ref, RopeSpec, Weight
from ramet.runtime.store import ModelMeta
from ramet.runtime.worker.weights import Weights

HEAD_NORMS = ("qwen3", "gemma3")
"""Architectures that bring each head of queries and keys to one length before they are rotated."""

POST_NORMS = ("gemma3",)
"""Those with a norm behind attention and feed-forward part, before the residual is added."""


@dataclass(frozen=True)
class Ropes:
    """Rotation of layers that see everything, and of those with a window."""

    whole: RopeSpec
    local: RopeSpec


@dataclass(frozen=True)
class Linear:
    weight: Weight
    bias: Weight | None

    def __call__(self, ops: Ops, x: Ref) -> Ref:
        y = ops.matmul(x, self.weight)
        return y if self.bias is None else ops.bias(y, self.bias)


@dataclass(frozen=True)
class Layer:
    """``rope`` None: positions are not told. ``window`` 0: all positions are seen."""

    rope: RopeSpec | None
    window: int
    attention_norm: Weight
    q: Linear
    k: Linear
    v: Linear
    q_norm: Weight | None
    k_norm: Weight | None
    output: Linear
    attention_post_norm: Weight | None
    ffn_norm: Weight
    gate: Linear
    up: Linear
    down: Linear
    ffn_post_norm: Weight | None


@dataclass(frozen=True)
class Decoder:
    """Weights as the op set keeps them, and the forward pass over them."""

    meta: ModelMeta
    table: Weight
    layers: tuple[Layer, ...]
    norm: Weight
    head: Weight

    @staticmethod
    def load(meta: ModelMeta, weights: Weights, ops: OpSet, ropes: Ropes) -> Decoder:
        """Raises InvalidModel if a tensor is missing or of the wrong shape."""
        width, ffn, size = meta.width, meta.ffn, meta.head_dim
        q_width, kv_width = meta.heads * size, meta.kv_heads * size

        def vector(name: str, count: int = width) -> Weight:
            return ops.weight(weights.get(f"{name}.weight", (count,)))

        def linear(name: str, outputs: int, inputs: int) -> Linear:
            bias = weights.optional(f"{name}.bias", (outputs,))
            matrix = ops.weight(weights.get(f"{name}.weight", (outputs, inputs)))
            return Linear(matrix, None if bias is None else ops.weight(bias))

        def layer(index: int) -> Layer:
            at = f"blk.{index}."
            heads, post = meta.architecture in HEAD_NORMS, meta.architecture in POST_NORMS
            local = index in meta.local_layers if meta.local_layers else meta.window > 0
            return Layer(
                rope=None if index in meta.unrotated else ropes.local if local else ropes.whole,
                window=meta.window if local else 0,
                attention_norm=vector(at + "attn_norm"),
                q=linear(at + "attn_q", q_width, width),
                k=linear(at + "attn_k", kv_width, width),
                v=linear(at + "attn_v", kv_width, width),
                q_norm=vector(at + "attn_q_norm", size) if heads else None,
                k_norm=vector(at + "attn_k_norm", size) if heads else None,
                output=linear(at + "attn_output", width, q_width),
                attention_post_norm=vector(at + "post_attention_norm") if post else None,
                ffn_norm=vector(at + "ffn_norm"),
                gate=linear(at + "ffn_gate", ffn, width),
                up=linear(at + "ffn_up", ffn, width),
                down=linear(at + "ffn_down", width, ffn),
                ffn_post_norm=vector(at + "post_ffw_norm") if post else None,
            )

        table = ops.weight(weights.get("token_embd.weight", (meta.vocab_size, width)))
        head = table if meta.tied else ops.weight(weights.get("output.weight", (meta.vocab_size, width)))
        layers = tuple(layer(index) for index in range(meta.layers))
        return Decoder(meta, table, layers, vector("output_norm"), head)

    def forward(self, ops: Ops) -> Ref:
        """Logits of the wanted rows."""
        x = ops.embed(self.table, self.meta.embed_factor)
        for index, layer in enumerate(self.layers):
            y = ops.rms_norm(x, layer.attention_norm, self.meta.eps)
            x = ops.add(x, self._normed(ops, self._attention(ops, y, index, layer), layer.attention_post_norm))
            y = ops.rms_norm(x, layer.ffn_norm, self.meta.eps)
            x = ops.add(x, self._normed(ops, self._feed_forward(ops, y, layer), layer.ffn_post_norm))
        x = ops.rms_norm(ops.take_rows(x), self.norm, self.meta.eps)
        return ops.matmul(x, self.head)

    def _attention(self, ops: Ops, x: Ref, index: int, layer: Layer) -> Ref:
        meta = self.meta

        def heads(projection: Linear, norm: Weight | None, count: int) -> Ref:
            y = self._normed(ops, projection(ops, x), norm)
            return y if layer.rope is None else ops.rope(y, count, layer.rope)

        q, k = heads(layer.q, layer.q_norm, meta.heads), heads(layer.k, layer.k_norm, meta.kv_heads)
        ops.store_kv(k, layer.v(ops, x), index)
        scale = meta.query_scale or meta.head_dim**-0.5
        return layer.output(ops, ops.attention(q, index, meta.heads, scale, layer.window))

    def _feed_forward(self, ops: Ops, x: Ref, layer: Layer) -> Ref:
        gated = ops.gelu_mul if self.meta.activation == "gelu" else ops.silu_mul
        return layer.down(ops, gated(layer.gate(ops, x), layer.up(ops, x)))

    def _normed(self, ops: Ops, x: Ref, weight: Weight | None) -> Ref:
        return x if weight is None else ops.rms_norm(x, weight, self.meta.eps)
