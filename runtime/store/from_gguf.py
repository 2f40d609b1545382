"""Metadata out of a GGUF file."""

from __future__ import annotations

from typing import Any

from ramet.runtime.protocol.errors import InvalidModel
from ramet.runtime.store.gguf import GgufFile
from ramet.runtime.store.gguf_tokenizer import NORMAL, SPECIAL
from ramet.runtime.store.meta import ModelMeta, RopeMeta, SamplingMeta, WeightFile
from ramet.runtime.store.special import end_ids

_LARGEST_GEMMA3 = 62
"""Layers of the 27B model, the one whose queries are scaled by width / heads."""


def read_meta(file: GgufFile, *, name: str, source: str, weights: tuple[WeightFile, ...], sha256: str) -> ModelMeta:
    """Raises InvalidModel where a field is missing or a feature is not supported."""
    arch = file.text("general.architecture")
    heads, width = file.integer(f"{arch}.attention.head_count"), file.integer(f"{arch}.embedding_length")
    tokens = file.texts("tokenizer.ggml.tokens")
    types = file.integers("tokenizer.ggml.token_type")
    special = {token: index for index, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind in SPECIAL}
    bos, eos = file.integer("tokenizer.ggml.bos_token_id", -1), file.integer("tokenizer.ggml.eos_token_id", -1)
    declared = [eos] if eos >= 0 else []
    declared += [file.integer(key) for key in ("tokenizer.ggml.eot_token_id",) if key in file.fields]
    head_dim = file.integer(f"{arch}.attention.key_length", width // heads)
    layers, window = file.integer(f"{arch}.block_count"), file.integer(f"{arch}.attention.sliding_window", 0)
    return ModelMeta(
        name=name,
        source=source,
        architecture=arch,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=file.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=file.integer(f"{arch}.feed_forward_length"),
        context=file.integer(f"{arch}.context_length"),
        rope=_rope(file, arch, head_dim),
        window=window,
        **(_gemma3(file, layers, window, width, heads) if arch == "gemma3" else {}),
        unrotated=tuple(range(3, layers, 4)) if arch == "smollm3" else (),
        eps=file.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        vocab_size=_vocabulary(file),
        tied="output.weight" not in file.tensors,
        bos_id=bos,
        add_bos=bool(file.fields.get("tokenizer.ggml.add_bos_token", False)) and bos >= 0,
        end_ids=end_ids(declared, {token: index for index, token in enumerate(tokens) if types[index] != NORMAL}),
        special_ids=tuple(sorted(special.values())),
        bos_token=tokens[bos] if 0 <= bos < len(tokens) else "",
        eos_token=tokens[eos] if 0 <= eos < len(tokens) else "",
        chat_template=file.text("tokenizer.chat_template", ""),
        sampling=_sampling(file),
        sha256=sha256,
        weights=weights,
    )


def _gemma3(file: GgufFile, layers: int, window: int, width: int, heads: int) -> dict[str, Any]:
    """What the file leaves to the reader, as llama.cpp reads it: five layers with a window, then one without."""
    if file.fields.get("gemma3.final_logit_softcapping") or file.fields.get("gemma3.attn_logit_softcapping"):
        raise InvalidModel(f"{file.path}: soft caps on logits are not supported.")
    pattern = file.fields.get("gemma3.attention.sliding_window_pattern", 6)
    if isinstance(pattern, list):
        local = tuple(index for index, seen in enumerate(pattern[:layers]) if seen)
    else:
        local = tuple(index for index in range(layers) if (index + 1) % max(1, int(pattern)))
    return {
        "local_layers": local if window else (),
        "local_rope": RopeMeta(base=file.number("gemma3.rope.freq_base_swa", 10_000.0)),
        "query_scale": (width // heads) ** -0.5 if layers == _LARGEST_GEMMA3 else 0.0,
        "embed_factor": width**0.5,
        "activation": "gelu",
    }


def _sampling(file: GgufFile) -> SamplingMeta:
    def number(name: str) -> float | None:
        key = f"general.sampling.{name}"
        return file.number(key) if key in file.fields else None

    top_k = number("top_k")
    return SamplingMeta(
        temperature=number("temp"),
        top_p=number("top_p"),
        top_k=None if top_k is None else int(top_k),
        min_p=number("min_p"),
        repetition_penalty=number("penalty_repeat"),
    )


def _rope(file: GgufFile, arch: str, head_dim: int) -> RopeMeta:
    kind = file.text(f"{arch}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise InvalidModel(
            f"{file.path}: rope scaling {kind!r} is not supported (none, linear, and llama3's factors are)."
        )
    rotated = file.integer(f"{arch}.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise InvalidModel(
            f"{file.path}: {rotated} of {head_dim} dimensions of a head are rotated; only all are supported."
        )
    return RopeMeta(
        base=file.number(f"{arch}.rope.freq_base", 10_000.0),
        scaling="linear" if kind == "linear" else "none",
        factor=file.number(f"{arch}.rope.scaling.factor", 1.0),
    )


def _vocabulary(file: GgufFile) -> int:
    """Width of the logits: rows of the embedding, which may be padded beyond the tokens."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise InvalidModel(f"{file.path} has no tensor 'token_embd.weight': it is not a language model's file.")
    return table.shape[0]
