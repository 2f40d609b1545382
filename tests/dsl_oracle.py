"""An engine on the KV oracle: real processes, real scheduler, no model. Its ids spell single bytes and words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ramet.runtime import store
from ramet.runtime.store.meta import RopeMeta, write_meta
from ramet.runtime.tokenizer.byte_table import byte_level_alphabet

import ramet as rt

VOCAB = 1000
END = VOCAB - 1
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}system: Default.<|end|>\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def oracle_folder(path: Path) -> store.ModelFolder:
    """A model folder without weights, whose tokeniser spells what the oracle's worker spells."""
    letter = {byte: char for char, byte in byte_level_alphabet().items()}
    vocabulary = {letter[i]: i for i in range(256)} | {f"\u0120w{i}": i for i in range(256, END)} | {"<|end|>": END}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    definition: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": END,
                "content": "<|end|>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(definition))
    meta = store.ModelMeta(
        name="oracle",
        architecture="oracle",
        layers=1,
        width=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        ffn=1,
        context=4096,
        rope=RopeMeta(base=10000.0),
        eps=1e-5,
        vocab_size=VOCAB,
        tied=True,
        bos_id=-1,
        add_bos=False,
        end_ids=(END,),
        special_ids=(END,),
        chat_template=TEMPLATE,
        sha256="0" * 64,
        weights=(),
    )
    write_meta(path, meta)
    return store.ModelFolder(path=path, weights=(), tokenizer=path / "tokenizer.json", meta=meta)


def oracle_engine(path: Path, **options: Any) -> rt.Engine:
    settings: dict[str, Any] = {"kernels": "oracle", "kv_tokens": 16384, "context": 4096, "check_invariants": True}
    return rt.Engine(oracle_folder(path), **{**settings, **options})
