"""Metadata out of a folder in the layout of the Hugging Face hub: config.json, tokenizer.json, safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from ramet.runtime.protocol.errors import InvalidModel, ModelNotFound
from ramet.runtime.store.meta import ModelMeta, RopeMeta, SamplingMeta, WeightFile
from ramet.runtime.store.special import end_ids
from tokenizers import Tokenizer

_Ids: TypeAlias = int | list[int] | None
_T = TypeVar("_T")


class _Token(Struct):
    content: str = ""


class _Rope(Struct):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    partial_rotary_factor: float = 1.0


class _Config(Struct):
    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rope_theta: float | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: dict[str, msgspec.Raw] | None = None
    rope_local_base_freq: float = 10_000.0
    tie_word_embeddings: bool = False
    eos_token_id: _Ids = None
    bos_token_id: _Ids = None
    hidden_act: str = "silu"
    hidden_activation: str | None = None
    use_sliding_window: bool | None = None
    sliding_window: int | None = None
    max_window_layers: int = 0
    sliding_window_pattern: int = 6
    layer_types: list[str] | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int = 4
    query_pre_attn_scalar: float = 256.0
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None


class _Generation(Struct):
    eos_token_id: _Ids = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def sampling(self) -> SamplingMeta:
        if self.do_sample is False:
            return SamplingMeta(repetition_penalty=self.repetition_penalty)
        return SamplingMeta(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


class _NamedTemplate(Struct):
    name: str
    template: str


class _TokenizerConfig(Struct):
    bos_token: _Token | str | None = None
    eos_token: _Token | str | None = None
    add_bos_token: bool | None = None
    chat_template: str | list[_NamedTemplate] | UnsetType = UNSET


_ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
"""By ``model_type``: the name that GGUF files have for it."""


def weight_names(folder: Path) -> list[str]:
    """Names of the safetensors files: those of the index, or all there are. Raises ModelNotFound if there are none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        table = msgspec.json.decode(index.read_bytes(), type=dict[str, msgspec.Raw]).get("weight_map")
        names = sorted(set(msgspec.json.decode(table, type=dict[str, str]).values())) if table else []
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        lack = ", ".join(missing) or "*.safetensors"
        raise ModelNotFound(f"{folder} lacks {lack}. A model folder holds config.json, tokenizer.json and safetensors.")
    return names


def read_meta(folder: Path, *, name: str, source: str, weights: tuple[WeightFile, ...], sha256: str) -> ModelMeta:
    """Raises ModelNotFound where a file is missing, InvalidModel where one is damaged or not supported."""
    config = _read(folder / "config.json", _Config)
    generation = _read(folder / "generation_config.json", _Generation, optional=True) or _Generation()
    settings = _read(folder / "tokenizer_config.json", _TokenizerConfig, optional=True) or _TokenizerConfig()
    if config is None:
        raise ModelNotFound(f"{folder} has no config.json.")
    gemma = config.model_type == "gemma3_text"
    activation = (config.hidden_activation or "gelu_pytorch_tanh") if gemma else config.hidden_act
    if config.model_type not in _ARCHITECTURES or activation != ("gelu_pytorch_tanh" if gemma else "silu"):
        raise InvalidModel(
            f"{folder}: model_type {config.model_type!r} (activation {activation!r}) is not supported; supported: "
            f"{', '.join(_ARCHITECTURES)}, each with its usual activation."
        )
    if config.final_logit_softcapping or config.attn_logit_softcapping:
        raise InvalidModel(f"{folder}: soft caps on logits are not supported.")
    local = _local_layers(config)
    whole, other = _ropes(folder, config)
    tokenizer = _tokenizer(folder / "tokenizer.json")
    special = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    declared = _ids(generation.eos_token_id) + _ids(config.eos_token_id)
    eos = tokenizer.token_to_id(_text(settings.eos_token)) if settings.eos_token else None
    declared += [] if eos is None else [eos]
    bos = tokenizer.token_to_id(_text(settings.bos_token)) if settings.bos_token else None
    bos_id = bos if bos is not None else (_ids(config.bos_token_id) or [-1])[0]
    return ModelMeta(
        name=name,
        source=source,
        architecture=_ARCHITECTURES[config.model_type],
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        ffn=config.intermediate_size,
        context=config.max_position_embeddings,
        rope=whole,
        window=(config.sliding_window or 0) if local else 0,
        local_layers=local if len(local) < config.num_hidden_layers else (),
        local_rope=other,
        unrotated=_unrotated(config),
        query_scale=config.query_pre_attn_scalar**-0.5 if gemma else 0.0,
        embed_factor=config.hidden_size**0.5 if gemma else 1.0,
        activation="gelu" if gemma else "silu",
        eps=config.rms_norm_eps,
        vocab_size=config.vocab_size,
        tied=config.tie_word_embeddings,
        bos_id=bos_id,
        add_bos=bos_id >= 0 and _adds_bos(tokenizer, settings, bos_id),
        end_ids=end_ids(declared, special),
        special_ids=tuple(sorted(special.values())),
        bos_token=_text(settings.bos_token),
        eos_token=_text(settings.eos_token),
        chat_template=_template(folder, settings),
        sampling=generation.sampling(),
        sha256=sha256,
        weights=weights,
        tokenizer=str((folder / "tokenizer.json").resolve()),
    )


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ModelNotFound(f"{path} is missing. A model folder holds config.json, tokenizer.json and safetensors.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise InvalidModel(f"{path} cannot be read: {error}.") from error


def _adds_bos(tokenizer: Tokenizer, settings: _TokenizerConfig, bos: int) -> bool:
    if settings.add_bos_token is not None:
        return settings.add_bos_token
    ids: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    return ids[:1] == [bos]


def _read(path: Path, kind: type[_T], *, optional: bool = False) -> _T | None:
    if not path.is_file():
        if optional:
            return None
        raise ModelNotFound(f"{path} is missing. A model folder holds config.json, tokenizer.json and safetensors.")
    return _decoded(path.read_bytes(), kind, path)


def _decoded(data: bytes | msgspec.Raw, kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{path} cannot be read: {error}.") from error


def _ids(value: _Ids) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def _text(token: _Token | str | None) -> str:
    return token.content if isinstance(token, _Token) else (token or "")


def _local_layers(config: _Config) -> tuple[int, ...]:
    """Layers that see a window alone."""
    layers = range(config.num_hidden_layers)
    if not config.sliding_window or config.use_sliding_window is False:
        return ()
    if config.model_type == "mistral":
        return tuple(layers)
    if config.layer_types is not None:
        return tuple(index for index in layers if config.layer_types[index] == "sliding_attention")
    if config.model_type == "gemma3_text":
        return tuple(index for index in layers if (index + 1) % config.sliding_window_pattern)
    return tuple(layers)[config.max_window_layers :] if config.use_sliding_window else ()


def _unrotated(config: _Config) -> tuple[int, ...]:
    """Layers that are told no positions."""
    if config.model_type != "smollm3":
        return ()
    if config.no_rope_layers is not None:
        return tuple(index for index, rotated in enumerate(config.no_rope_layers) if not rotated)
    step = config.no_rope_layer_interval
    return tuple(range(step - 1, config.num_hidden_layers, step))


def _ropes(folder: Path, config: _Config) -> tuple[RopeMeta, RopeMeta | None]:
    """Of layers that see all, and of those with a window where that is another one."""
    path = folder / "config.json"
    given = config.rope_parameters or {}
    if "full_attention" in given:  # by kind of layer
        parts = [_decoded(given[kind], _Rope, path) for kind in ("full_attention", "sliding_attention")]
        return _rope(folder, parts[0], None), _rope(folder, parts[1], None)
    rope = config.rope_scaling
    if rope is None:
        rope = _decoded(msgspec.json.encode(given), _Rope, path)
    whole = _rope(folder, rope, config.rope_theta)
    return whole, RopeMeta(base=config.rope_local_base_freq) if config.model_type == "gemma3_text" else None


def _rope(folder: Path, given: _Rope, base: float | None) -> RopeMeta:
    base = base or given.rope_theta or 10_000.0
    kind = given.rope_type or given.type or "default"
    if kind == "default":
        return RopeMeta(base=base)
    if given.partial_rotary_factor != 1.0 or kind not in ("linear", "llama3"):
        raise InvalidModel(f"{folder}: rope scaling {kind!r} is not supported; supported: default, linear, llama3.")
    return RopeMeta(
        base=base,
        scaling="linear" if kind == "linear" else "llama3",
        factor=given.factor,
        low_freq_factor=given.low_freq_factor,
        high_freq_factor=given.high_freq_factor,
        original_context=given.original_max_position_embeddings,
    )


def _template(folder: Path, settings: _TokenizerConfig) -> str:
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    if isinstance(settings.chat_template, str):
        return settings.chat_template
    if isinstance(settings.chat_template, list):
        named = {item.name: item.template for item in settings.chat_template}
        return named.get("default", "")
    return ""
