"""Helpers for tests of programs that use ramet."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ramet.frontend_lang.fake import FakeBackend as FakeBackend
from ramet.runtime.constrain import compile
from ramet.runtime.protocol.errors import GenerationFailed
from ramet.runtime.protocol.messages import ConstraintSpec

if TYPE_CHECKING:
    from ramet.runtime.tokenizer import Tokenizer


def accepts(spec: object, text: str) -> bool:
    """Whether the constraint of ``spec`` allows exactly ``text``: its ids in the default tokeniser, then an end.

    ``spec``: a JSON Schema as a dict (or True / False), a pydantic model class, or a regex as a string. The walk is the
    worker's own: each id must be in the mask before the matcher is advanced over it. Keys of objects may stand in any
    order, and blanks between its tokens, as in every JSON text (option ``order: any``, then ``whitespace: flexible``; a
    request gets ``given`` and ``compact`` unless it says otherwise). Raises a ``ConstraintError`` where the constraint
    cannot be compiled.
    """
    compact = _spec(spec)
    if _walk(compact, text):
        return True
    flexible = ConstraintSpec(compact.kind, compact.text, "flexible", compact.options)
    return compact.kind == "json_schema" and any(blank in text for blank in " \t\n\r") and _walk(flexible, text)


def _walk(spec: ConstraintSpec, text: str) -> bool:
    tokenizer = _tokenizer()
    matcher = compile(spec, tokenizer).matcher()
    row = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
    for token in tokenizer.encode(text):
        try:
            matcher.fill_mask(row)
        except GenerationFailed:
            return False  # a row would end here with an error
        if not int(row[token >> 5]) >> (token & 31) & 1 or not matcher.advance([token]):
            return False
    if not matcher.can_end:
        return False
    matcher.fill_mask(row)
    return all(int(row[end >> 5]) >> (end & 31) & 1 for end in tokenizer.end_ids)


def _spec(spec: object) -> ConstraintSpec:
    if isinstance(spec, str):
        return ConstraintSpec("regex", spec)
    if isinstance(spec, (dict, bool)):
        return _schema(spec)
    schema_of = getattr(spec, "model_json_schema", None)
    if schema_of is None:
        raise TypeError(f"a spec is a JSON Schema (dict), a pydantic model or a regex (str), not {type(spec).__name__}")
    return _schema(schema_of())


def _schema(document: object) -> ConstraintSpec:
    return ConstraintSpec("json_schema", json.dumps(document), options='{"order":"any"}')


@lru_cache(maxsize=1)
def _tokenizer() -> Tokenizer:
    from ramet.runtime import store
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(store.resolve("default"))
