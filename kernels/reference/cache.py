"""The paged KV cache of the reference: one slot per position, values rounded to the cache's type as they are stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "int8": torch.int8}


@dataclass(frozen=True)
class PagedCache:
    """``k``, ``v``: [layers, slots, G, E]. int8: one scale per slot and head, float32 [layers, slots, G]; x = q s."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    block_size: int

    @staticmethod
    def make(layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: str) -> PagedCache:
        shape = (layers, blocks * block_size, kv_heads, head_dim)
        k, v = torch.empty(shape, dtype=DTYPES[dtype]), torch.empty(shape, dtype=DTYPES[dtype])
        if dtype != "int8":
            return PagedCache(k, v, None, None, block_size)
        return PagedCache(k, v, torch.empty(shape[:-1]), torch.empty(shape[:-1]), block_size)

    def store(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """``k``, ``v``: float32 [n, G, E], to the slots [n]."""
        if self.k_scale is None or self.v_scale is None:
            self.k[layer, slots] = k.to(self.k.dtype)
            self.v[layer, slots] = v.to(self.v.dtype)
            return
        self.k[layer, slots], self.k_scale[layer, slots] = _to_int8(k)
        self.v[layer, slots], self.v_scale[layer, slots] = _to_int8(v)

    def load(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``slots`` [...] as float32 [..., G, E]."""
        k, v = self.k[layer][slots].float(), self.v[layer][slots].float()
        if self.k_scale is not None and self.v_scale is not None:
            k = k * self.k_scale[layer][slots].unsqueeze(-1)
            v = v * self.v_scale[layer][slots].unsqueeze(-1)
        return k, v

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """All layers of slots ``source`` to slots ``target``."""
        for part in (self.k, self.v, self.k_scale, self.v_scale):
            if part is not None:
                part[:, target] = part[:, source]


def _to_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1) / 127.0
    inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros(()))
    return torch.round(x * inverse.unsqueeze(-1)).clamp(-127, 127).to(torch.int8), scale
