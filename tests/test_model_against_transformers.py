"""Logits and greedy ids against ``transformers`` on the same float32 weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from op_sets import Row, make_batch, relative_error
from ramet.kernels.dequantise import dequantise
from ramet.kernels.reference import ReferenceOps
from ramet.runtime import store
from ramet.runtime.frontend.chat import ChatTemplate
from ramet.runtime.store import ModelFolder
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.worker.models import Model, load_model
from ramet.runtime.worker.weights import open_weights

TOLERANCE = 1e-3
NEAR_TIE = 1e-3
CONTINUATION = 200

PROMPTS = [
    "What is the capital of France, and what is it known for?",
    "Write a short poem about the sea in winter.",
    "Explain to a child why the sky is blue.",
    "List 3 differences between a list and a tuple in Python.",
    "def fibonacci(n):\n    '''Return the n-th number, for n = 0, 1, 2 ... 1000'''",
    'Extract the name and the price as JSON from: "A 12.50 EUR ticket for the opera, sold by Müller & Söhne."',
    "Übersetze ins Englische: Der schnelle braune Fuchs springt über den faulen Hund. 漢字も少し。",
    "Summarise: " + "The committee met on Tuesday and agreed on the budget for 2027. " * 12,
    "Give me a recipe for pancakes with exact amounts.",
    "Plan a week of training for a 10 km run, day by day.",
]


def run(model: Model, ops: ReferenceOps, cache: object, ids: list[int], start: int, logits: str) -> np.ndarray:
    return model.program.run(make_batch([Row(ids, start, list(range(64)))], logits=logits), cache)


def cache_of(model: Model, ops: ReferenceOps) -> object:
    return ops.kv_cache(model.config.layers, 64, 16, model.config.kv_heads, model.config.head_dim)


def twin(folder: ModelFolder) -> torch.nn.Module:
    """transformers' model, made from our metadata and our dequantised tensors."""
    from transformers import LlamaConfig, LlamaForCausalLM

    meta, weights = folder.meta, open_weights(folder)
    config = LlamaConfig(
        vocab_size=meta.vocab_size,
        hidden_size=meta.width,
        intermediate_size=meta.ffn,
        num_hidden_layers=meta.layers,
        num_attention_heads=meta.heads,
        num_key_value_heads=meta.kv_heads,
        max_position_embeddings=meta.context,
        rms_norm_eps=meta.eps,
        rope_theta=meta.rope.base,
        tie_word_embeddings=meta.tied,
        attn_implementation="eager",
    )
    if hasattr(config, "rope_parameters"):
        config.rope_parameters = {"rope_type": "default", "rope_theta": meta.rope.base}
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    state = {}
    for name, tensor in weights.tensors.items():
        values = torch.from_numpy(np.array(dequantise(tensor)))
        if name == "token_embd.weight":
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = values
        elif name == "output_norm.weight":
            state["model.norm.weight"] = values
        else:
            _, layer, part, _ = name.split(".")
            if part in ("attn_q", "attn_k"):  # from pairs (2i, 2i + 1) to (i, i + E / 2)
                halves = values.reshape(-1, meta.head_dim // 2, 2, meta.width)
                values = halves.transpose(1, 2).reshape(values.shape)
            state[f"model.layers.{layer}.{names[part]}.weight"] = values.contiguous()
    model.load_state_dict(state, assign=True, strict=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers were made without storage
    return model.eval()


@pytest.fixture(scope="module")
def real(model_dir: Path) -> tuple[Model, ReferenceOps, torch.nn.Module, list[list[int]]]:
    folder = store.open(model_dir)
    ops = ReferenceOps("f32")
    chat = ChatTemplate(folder.meta, Tokenizer.load(folder))
    prompts = [chat.ids([{"role": "user", "content": text}]) for text in PROMPTS]
    return load_model(folder, ops), ops, twin(folder), prompts


Real = tuple[Model, ReferenceOps, torch.nn.Module, list[list[int]]]


@pytest.mark.slow
def test_logits_of_the_default_model(real: Real) -> None:
    model, ops, other, prompts = real
    for ids in prompts:
        ours = run(model, ops, cache_of(model, ops), ids, 0, "all").copy()
        with torch.inference_mode():
            theirs = other(torch.tensor([ids])).logits[0].numpy()
        assert relative_error(ours, theirs) < TOLERANCE


def greedy(model: Model, ops: ReferenceOps, prompts: list[list[int]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """``count`` greedy ids of each prompt, all in one batch, and for each id the gap between the two best logits."""
    need = [-(-(len(ids) + count) // 16) for ids in prompts]
    ends = np.cumsum(need)
    tables = [list(range(end - blocks, end)) for end, blocks in zip(ends, need, strict=True)]
    cache = ops.kv_cache(model.config.layers, int(ends[-1]), 16, model.config.kv_heads, model.config.head_dim)
    rows = [Row(ids, 0, table) for ids, table in zip(prompts, tables, strict=True)]
    out, gaps = [], []
    for _ in range(count):
        logits = model.program.run(make_batch(rows, logits="last"), cache)
        best = np.partition(logits, -2, axis=-1)[:, -2:]
        gaps.append(best[:, 1] - best[:, 0])
        out.append(logits.argmax(-1))
        rows = [Row([int(token)], r.start + len(r.ids), r.blocks) for token, r in zip(out[-1], rows, strict=True)]
    return np.stack(out, axis=1), np.stack(gaps, axis=1)


@pytest.mark.slow
def test_greedy_ids_of_the_default_model(real: Real) -> None:
    """transformers reads each of our continuations once: its greedy choice after every prefix must be our next id,
    which by induction makes its own continuation the same."""
    model, ops, other, prompts = real
    ours, gaps = greedy(model, ops, prompts, CONTINUATION)
    whole = 0
    for i, prompt in enumerate(prompts):
        with torch.inference_mode():
            logits = other(torch.tensor([[*prompt, *ours[i, :-1].tolist()]])).logits[0, len(prompt) - 1 :].numpy()
        different = np.flatnonzero(logits.argmax(-1) != ours[i])
        whole += not len(different)
        assert not len(different) or gaps[i, different[0]] < NEAR_TIE, f"ids part at {different[0]} without a near-tie"
    assert whole >= 8
