"""Bytes and matrix elements of a model that one step of decoding reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ramet.runtime.protocol.errors import InvalidModel
from ramet.runtime.store import ModelFolder
from ramet.runtime.store.gguf import read_gguf

_EMBEDDINGS = ("token_embd.weight", "model.embed_tokens.weight")
_HEADS = ("output.weight", "lm_head.weight")


@dataclass(frozen=True)
class Weights:
    """``layer_elements``: of the matrices that every token passes; ``head_elements``: of the one from state to logits;
    ``bytes_per_step``: of everything that a step reads, as in the file (an embedding that is not also the head is
    looked up, not read)."""

    bytes_per_step: int
    layer_elements: int
    head_elements: int
    quantised: bool


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    size: int
    plain: bool
    """Stored as floating point numbers."""


def look(folder: ModelFolder) -> Weights:
    """Raises InvalidModel if the weight files cannot be read."""
    tensors = [tensor for path in folder.weights for tensor in _tensors(path)]
    tied = not any(tensor.name in _HEADS for tensor in tensors)
    head_names = _EMBEDDINGS if tied else _HEADS
    read = [tensor for tensor in tensors if tied or tensor.name not in _EMBEDDINGS]
    matrices = [tensor for tensor in read if len(tensor.shape) > 1]
    heads = [tensor for tensor in matrices if tensor.name in head_names]
    return Weights(
        bytes_per_step=sum(tensor.size for tensor in read),
        layer_elements=sum(math.prod(tensor.shape) for tensor in matrices if tensor not in heads),
        head_elements=sum(math.prod(tensor.shape) for tensor in heads),
        quantised=any(not tensor.plain for tensor in matrices),
    )


def _tensors(path: Path) -> Iterator[_Tensor]:
    if path.suffix == ".gguf":
        for info in read_gguf(path).tensors.values():
            yield _Tensor(info.name, info.shape, info.size, info.kind in ("F32", "F16", "BF16"))
        return
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                yield _Tensor(name, tuple(entry["shape"]), end - begin, entry["dtype"] in ("F32", "F16", "BF16"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidModel(f"{path} is not a safetensors file: {error}") from error
