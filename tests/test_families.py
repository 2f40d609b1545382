"""Random models of every family, written by transformers as a folder and from there as GGUF, loaded by both: the same
logits with every implementation of the kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from folders import write_tokenizer
from op_sets import OP_SETS, OpSetCase, Row, make_batch, relative_error
from ramet.kernels.ops import GroupSpec
from ramet.kernels.reference import ReferenceOps
from ramet.runtime import store
from ramet.runtime.protocol.errors import InvalidModel
from ramet.runtime.worker.models import load_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 30_000.0, "factor": 4.0},
}
GEMMA = {
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 24,
    "rope_parameters": GEMMA_ROPES,
    "num_hidden_layers": 7,
    "initializer_range": 0.1,
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama untied with biases": ("Llama", {"tie_word_embeddings": False, "attention_bias": True}),
    "llama with llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama with linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    ),
    "llama with wide heads": ("Llama", {"head_dim": 16}),
    "mistral with a window": ("Mistral", {"sliding_window": 40}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 9, "initializer_range": 0.1, "pad_token_id": 0}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with windows in some layers": ("Qwen2", WINDOWS),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3 untied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
    "qwen3 with windows in some layers": ("Qwen3", {"head_dim": 32, **WINDOWS}),
    "gemma3": ("Gemma3", GEMMA),
}


def make(folder: Path, name: str, dtype: torch.dtype) -> tuple[torch.nn.Module, int]:
    """A random model of the family in ``folder``, as transformers reads it back; size of its vocabulary."""
    kind, changes = FAMILIES[name]
    vocabulary = write_tokenizer(folder)
    torch.manual_seed(0)
    sizes = {
        "vocab_size": vocabulary + 5,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    }
    config_kind = transformers.Gemma3TextConfig if kind == "Gemma3" else getattr(transformers, f"{kind}Config")
    model_kind = getattr(transformers, f"{kind}ForCausalLM")
    made = model_kind(config_kind(**{**sizes, **changes})).to(dtype)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0 if parameter.mean() == 1 else 0.0, 0.3)
    made.save_pretrained(folder, safe_serialization=True)
    other = model_kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return other, vocabulary


def logits(folder: store.ModelFolder, ops: Any, ids: list[int]) -> np.ndarray:
    model = load_model(folder, ops)
    cache = ops.kv_cache(model.config.layers, 64, 16, model.config.kv_heads, model.config.head_dim)
    return model.program.run(make_batch([Row(ids, 0, list(range(64)))], logits="all"), cache).copy()


def theirs(other: torch.nn.Module, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return other(torch.tensor([ids])).logits[0].float().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    other, vocabulary = make(tmp_path, name, dtype)
    folder = store.resolve(str(tmp_path), cache=tmp_path / "cache")
    ids = np.random.default_rng(0).integers(0, vocabulary, 150).tolist()
    assert relative_error(logits(folder, ReferenceOps("f32"), ids), theirs(other, ids)) < 2e-5


@pytest.mark.parametrize("case", OP_SETS[1:], ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["llama with llama3 rope", "smollm3", "qwen2", "qwen3", "gemma3"])
def test_other_kernels(tmp_path: Path, name: str, case: OpSetCase) -> None:
    other, vocabulary = make(tmp_path, name, torch.float32)
    folder = store.resolve(str(tmp_path), cache=tmp_path / "cache")
    ids = np.random.default_rng(1).integers(0, vocabulary, 150).tolist()
    assert relative_error(logits(folder, case.make("f32"), ids), theirs(other, ids)) < 1e-4


@pytest.mark.parametrize("case", OP_SETS, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["qwen3 with windows in some layers", "gemma3"])
def test_the_same_bits_alone_in_company_and_grouped(tmp_path: Path, name: str, case: OpSetCase) -> None:
    """Windows end inside of segments that rows share."""
    _, vocabulary = make(tmp_path, name, torch.float32)
    ops = case.make("bf16")
    model = load_model(store.resolve(str(tmp_path), cache=tmp_path / "cache"), ops)
    prefix = np.random.default_rng(3).integers(0, vocabulary, 200).tolist()
    shared = list(range(12))

    def run(cache: Any, rows: list[Row], grouped: bool = False) -> np.ndarray:
        groups = [GroupSpec(np.arange(len(rows), dtype=np.int32), 0, 192)] if grouped else []
        return model.program.run(make_batch(rows, logits="all", groups=groups), cache).copy()

    def cache() -> Any:
        return ops.kv_cache(model.config.layers, 64, 16, model.config.kv_heads, model.config.head_dim)

    alone = run(cache(), [Row([*prefix, 2, 7], 0, list(range(16)))])
    for grouped in (False, True):
        kv = cache()
        run(kv, [Row(prefix[:192], 0, shared)])
        rows = [Row([*prefix[192:], i], 192, [*shared, 20 + 2 * i, 21 + 2 * i]) for i in range(5)]
        first = run(kv, rows, grouped).reshape(5, 9, -1)
        second = run(kv, [Row([7], 201, row.blocks) for row in rows], grouped)
        assert (first[2] == alone[192:201]).all() and (second[2] == alone[201]).all()


# ---------------------------------------------------------------- the same as GGUF

ARCHITECTURES = {"Llama": "llama", "SmolLM3": "smollm3", "Qwen2": "qwen2", "Qwen3": "qwen3", "Gemma3": "gemma3"}
IN_GGUF = ["llama", "llama with llama3 rope", "smollm3", "qwen2", "qwen3", "gemma3"]


def write_gguf(path: Path, name: str, model: torch.nn.Module) -> None:
    """As converters write it: GGUF's names, query and key rows of some families reordered, Gemma's norms plus 1."""
    kind, _ = FAMILIES[name]
    arch, config = ARCHITECTURES[kind], model.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    whole = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(whole["rope_theta"])
    if arch == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(whole["factor"])
        writer.add_float32("gemma3.rope.freq_base_swa", config.rope_parameters["sliding_attention"]["rope_theta"])
    if whole["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(whole, size))
    vocabulary = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"]
    vocabulary += [f"t{index}" for index in range(config.vocab_size - len(vocabulary))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3, 3, 3, *[1] * (len(vocabulary) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for key, values in model.state_dict().items():
        array = values.float().numpy()
        if arch in ("llama", "smollm3") and key.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in key else groups
            array = array.reshape(count, 2, size // 2, -1).swapaxes(1, 2).reshape(array.shape)
        if arch == "gemma3" and key.endswith("norm.weight"):
            array = array + np.float32(1)
        target = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if target is not None and not (target.startswith("output.") and config.tie_word_embeddings):
            writer.add_tensor(target, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3_factors(rope: dict[str, Any], size: int) -> np.ndarray:
    """Divisors of the plain frequencies, by the published rule."""
    factors = []
    for plain in rope["rope_theta"] ** -(np.arange(0, size, 2) / size):
        length = 2 * np.pi / plain
        short = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        long = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        if length < short:
            factors.append(1.0)
        elif length > long:
            factors.append(rope["factor"])
        else:
            blend = rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]
            blend /= rope["high_freq_factor"] - rope["low_freq_factor"]
            factors.append(1 / ((1 - blend) / rope["factor"] + blend))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "hf").mkdir()
    other, vocabulary = make(tmp_path / "hf", name, torch.float32)
    write_gguf(tmp_path / "model.gguf", name, other)
    folder = store.resolve(str(tmp_path / "model.gguf"), cache=tmp_path / "cache")
    ids = np.random.default_rng(2).integers(0, vocabulary, 150).tolist()
    wanted = theirs(other, ids)
    for case in (OP_SETS[0], OP_SETS[-1]):
        assert relative_error(logits(folder, case.make("f32"), ids), wanted) < 1e-4, case.name


def test_the_makers_sampling_is_read(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    other, _ = make(tmp_path / "hf", "qwen3", torch.float32)
    settings = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [2, 0]}
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(settings))
    folder = store.resolve(str(tmp_path / "hf"), cache=tmp_path / "cache")
    assert folder.meta.sampling.given() == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert store.open(folder.path).meta == folder.meta
    write_gguf(tmp_path / "model.gguf", "qwen3", other)
    assert store.resolve(str(tmp_path / "model.gguf"), cache=tmp_path / "cache").meta.sampling.given() == {}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"final_logit_softcapping": 30.0}, "soft caps"),
        ({"hidden_activation": "relu"}, "relu"),
        ({"model_type": "gemma2"}, "gemma2"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    make(tmp_path, "gemma3", torch.float32)
    config = transformers.Gemma3TextConfig.from_pretrained(tmp_path).to_dict() | changes
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    with pytest.raises(InvalidModel, match=named):
        store.resolve(str(tmp_path), cache=tmp_path / "cache")
