"""Small model folders in the layout of the Hugging Face hub, made by the tests that need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{{ '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(folder: Path, template: str | None = CHATML) -> int:
    """tokenizer.json of single bytes, a few merges and two control tokens; the size of its vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n")]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens[:3])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    return len(tokens)


def write_gguf(path: Path, *, pre: str = "smollm", template: str = CHATML, seed: int = 0) -> None:
    """A Llama of one layer with random float32 weights and the tokenizer of ``write_tokenizer``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "th", "the"]
    writer = _llama_writer(path, len(tokens), seed)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["t h", "th e"])
    writer.add_chat_template(template)
    _finish(writer)


SPM_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def write_spm_gguf(path: Path, tokens: list[str], scores: list[float], types: list[int]) -> None:
    """The same with a SentencePiece vocabulary, whose ids 1 and 2 begin and end texts."""
    writer = _llama_writer(path, len(tokens), 0)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_add_bos_token(True)
    writer.add_chat_template(SPM_TEMPLATE)
    _finish(writer)


def _llama_writer(path: Path, vocabulary: int, seed: int) -> Any:
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(seed)
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64), "attn_norm": (32,), "ffn_norm": (32,)}
    named = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    for name, shape in {"token_embd.weight": (vocabulary, 32), "output_norm.weight": (32,), **named}.items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    return writer


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(folder: Path, *, template: str | None = CHATML) -> None:
    """A Llama of one layer as config.json, tokenizer.json and safetensors, without transformers."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder, template)
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "max_position_embeddings": 128,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    at = "model.layers.0."
    shapes = {
        f"{at}self_attn.{name}_proj.weight": (rows, 32) for name, rows in zip("qkvo", (32, 16, 16, 32), strict=True)
    }
    shapes |= {f"{at}mlp.gate_proj.weight": (64, 32), f"{at}mlp.up_proj.weight": (64, 32)}
    shapes |= {f"{at}mlp.down_proj.weight": (32, 64), f"{at}input_layernorm.weight": (32,)}
    shapes |= {f"{at}post_attention_layernorm.weight": (32,), "model.norm.weight": (32,)}
    shapes["model.embed_tokens.weight"] = (vocabulary, 32)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(tensors, str(folder / "model.safetensors"))
