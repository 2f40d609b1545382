"""What is known about a model without touching its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

FORMAT = 2
"""Version of meta.json and tokenizer.json; those of another version are written anew from the weights."""


class RopeMeta(Struct, frozen=True, kw_only=True):
    """Rotary embedding. ``scaling``: none; linear (positions divided by ``factor``); llama3 (long wavelengths divided
    by ``factor``, those between the two bounds blended)."""

    base: float = 10_000.0
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


class SamplingMeta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the model's makers want ids drawn where a request does not say; None: nothing is said."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def given(self) -> dict[str, float | int]:
        """What is said, by its name."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}


class WeightFile(Struct, frozen=True):
    """``path`` is relative to the model's folder, or absolute where the weights lie elsewhere."""

    path: str
    size: int
    sha256: str


class ModelMeta(Struct, frozen=True, kw_only=True):
    """Everything that the processes need besides weights and vocabulary; stored as meta.json.

    Sizes in elements: ``width`` is the residual stream, ``ffn`` the hidden layer of the feed-forward part. ``context``
    in tokens. ``bos_id`` is -1 where there is none. ``sha256`` covers all weight files.
    """

    name: str
    aliases: tuple[str, ...] = ()
    source: str = ""
    """What ``resolve`` was given."""
    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    rope: RopeMeta
    window: int = 0
    """Attention sees the last ``window`` positions, its own included; 0: all."""
    local_layers: tuple[int, ...] = ()
    """Layers that see the window alone; the others see all. Empty: every layer does."""
    local_rope: RopeMeta | None = None
    """Rotation in layers with a window, where it is another one."""
    unrotated: tuple[int, ...] = ()
    """Layers without rotation."""
    query_scale: float = 0.0
    """Factor of queries before the softmax; 0: head_dim ** -0.5."""
    embed_factor: float = 1.0
    activation: Literal["silu", "gelu"] = "silu"
    """Of the feed-forward part's gate; gelu by its tanh formula."""
    eps: float
    vocab_size: int
    tied: bool
    bos_id: int
    add_bos: bool
    end_ids: tuple[int, ...]
    special_ids: tuple[int, ...]
    bos_token: str = ""
    eos_token: str = ""
    chat_template: str = ""
    sampling: SamplingMeta = SamplingMeta()
    sha256: str
    weights: tuple[WeightFile, ...]
    tokenizer: str = "tokenizer.json"
    format: int = FORMAT


@dataclass(frozen=True)
class ModelFolder:
    """A prepared model. ``path``: its folder in the store; ``weights``: one GGUF file, or safetensors files."""

    path: Path
    weights: tuple[Path, ...]
    tokenizer: Path
    meta: ModelMeta


META_FILE = "meta.json"


def write_meta(folder: Path, meta: ModelMeta) -> None:
    text = msgspec.json.format(msgspec.json.encode(meta), indent=1)
    (folder / META_FILE).write_bytes(text)


def read_folder(folder: Path) -> ModelFolder | None:
    """The prepared model in ``folder``; None if there is none, it was written by another version, or a file of it is
    missing or of the wrong size."""
    try:
        meta = msgspec.json.decode((folder / META_FILE).read_bytes(), type=ModelMeta)
    except (OSError, msgspec.DecodeError):
        return None
    if meta.format != FORMAT:
        return None
    weights = tuple(folder / file.path for file in meta.weights)  # an absolute path replaces the folder
    tokenizer = folder / meta.tokenizer
    if not tokenizer.is_file():
        return None
    for path, file in zip(weights, meta.weights, strict=True):
        if not path.is_file() or path.stat().st_size != file.size:
            return None
    return ModelFolder(folder, weights, tokenizer, meta)
