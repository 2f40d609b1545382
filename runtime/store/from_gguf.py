"""Metadata and tokenizer.json out of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ramet.runtime.protocol.errors import InvalidModel
from ramet.runtime.store.gguf import GgufFile
from ramet.runtime.store.meta import ModelMeta, RopeMeta, WeightFile
from ramet.runtime.store.special import end_ids
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _bytes_only() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _bytes_only()])


def _words(digits: int) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_WORDS % digits), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": _single_digits,
    "gpt-2": _bytes_only,
    "default": _bytes_only,
    "llama-bpe": lambda: _words(3),
    "llama3": lambda: _words(3),
    "qwen2": lambda: _words(1),
}
"""By ``tokenizer.ggml.pre``: how text is cut before the merges apply."""


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer that the file's arrays describe. Raises InvalidModel for kinds other than byte-level BPE."""
    kind, pre = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise InvalidModel(
            f"{file.path}: the tokenizer model {kind!r} cannot be rebuilt from a GGUF file (only 'gpt2', byte-level "
            "BPE, can). Use a folder with safetensors and tokenizer.json instead."
        )
    if pre not in _PRE_TOKENIZERS:
        raise InvalidModel(
            f"{file.path}: the pre-tokenizer {pre!r} is not known (known: {', '.join(_PRE_TOKENIZERS)}). "
            "Use a folder with safetensors and tokenizer.json instead."
        )
    tokens = file.texts("tokenizer.ggml.tokens")
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in file.texts("tokenizer.ggml.merges"))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or not all(right for _, right in merges):
        raise InvalidModel(f"{file.path}: the token arrays are damaged (a token twice, or a merge of one part).")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in ("llama-bpe", "llama3")))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    types = file.integers("tokenizer.ggml.token_type")
    marked = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in marked if k == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in marked if k == _USER_DEFINED])
    return tokenizer


def read_meta(file: GgufFile, *, name: str, source: str, weights: tuple[WeightFile, ...], sha256: str) -> ModelMeta:
    """Raises InvalidModel where a field is missing or a feature is not supported."""
    arch = file.text("general.architecture")
    heads, width = file.integer(f"{arch}.attention.head_count"), file.integer(f"{arch}.embedding_length")
    tokens = file.texts("tokenizer.ggml.tokens")
    types = file.integers("tokenizer.ggml.token_type")
    special = {token: index for index, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == _CONTROL}
    bos, eos = file.integer("tokenizer.ggml.bos_token_id", -1), file.integer("tokenizer.ggml.eos_token_id", -1)
    declared = [eos] if eos >= 0 else []
    declared += [file.integer(key) for key in ("tokenizer.ggml.eot_token_id",) if key in file.fields]
    head_dim = file.integer(f"{arch}.attention.key_length", width // heads)
    return ModelMeta(
        name=name,
        source=source,
        architecture=arch,
        layers=file.integer(f"{arch}.block_count"),
        width=width,
        heads=heads,
        kv_heads=file.integer(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=file.integer(f"{arch}.feed_forward_length"),
        context=file.integer(f"{arch}.context_length"),
        rope=_rope(file, arch, head_dim),
        window=file.integer(f"{arch}.attention.sliding_window", 0),
        eps=file.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        vocab_size=_vocabulary(file),
        tied="output.weight" not in file.tensors,
        bos_id=bos,
        add_bos=bool(file.fields.get("tokenizer.ggml.add_bos_token", False)) and bos >= 0,
        end_ids=end_ids(declared, special),
        special_ids=tuple(sorted(special.values())),
        bos_token=tokens[bos] if 0 <= bos < len(tokens) else "",
        eos_token=tokens[eos] if 0 <= eos < len(tokens) else "",
        chat_template=file.text("tokenizer.chat_template", ""),
        sha256=sha256,
        weights=weights,
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


def write_tokenizer(file: GgufFile, target: Path) -> None:
    build_tokenizer(file).save(str(target), pretty=False)


def _vocabulary(file: GgufFile) -> int:
    """Width of the logits: rows of the embedding, which may be padded beyond the tokens."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise InvalidModel(f"{file.path} has no tensor 'token_embd.weight': it is not a language model's file.")
    return table.shape[0]
