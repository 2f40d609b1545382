"""Worked examples: documents with the records that they should give, checked before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pydantic import BaseModel

from ramet.extraction.schema import Target
from ramet.runtime.constrain import compile
from ramet.runtime.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.runtime.tokenizer import Tokenizer

Given: TypeAlias = "tuple[str, object] | Mapping[str, object] | Example"


@dataclass(frozen=True)
class Example:
    """``answer``: the record of ``text`` as compact JSON, as the model has to write it."""

    text: str
    answer: str


def examples(given: Iterable[Given] | str | Path) -> list[Example]:
    """Examples from pairs (text, record), mappings {"text": ..., "value": ...}, or a JSONL file of these.

    A record may be a pydantic model. Raises InvalidRequest naming the example that has another form.
    """
    if isinstance(given, (str, Path)):
        given = _lines(Path(given))
    return [_example(item, number) for number, item in enumerate(given, 1)]


def digest(given: Sequence[Example]) -> str:
    return hashlib.sha256(json.dumps([(one.text, one.answer) for one in given]).encode()).hexdigest() if given else ""


def check(given: Sequence[Example], goal: Target, tokenizer: Tokenizer) -> None:
    """Raises InvalidRequest naming the first example that the schema (or the model's validators) would refuse."""
    for number, example in enumerate(given, 1):
        matcher = compile(goal.binding.spec(example.text), tokenizer).matcher()
        good = 0
        for token in tokenizer.encode(example.answer):
            if not matcher.advance([token]):
                break
            good += len(tokenizer.token_bytes(token))
        text = example.answer.encode()
        if good < len(text) or not matcher.can_end:
            at = text[:good].decode(errors="replace")
            raise InvalidRequest(
                f"example {number} does not keep to the schema; what it may say ends after {at[-60:]!r}",
                param="examples",
            )
        if (refusal := goal.refusal(example.answer)) is not None:
            raise InvalidRequest(f"example {number} is refused: {refusal}", param="examples")


def _example(item: Given, number: int) -> Example:
    if isinstance(item, Example):
        return item
    if isinstance(item, Mapping):
        text, value = item.get("text"), item.get("value")
    elif isinstance(item, (tuple, list)) and len(item) == 2:
        text, value = item
    else:
        text = value = None
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    if not isinstance(text, str) or value is None:
        raise InvalidRequest(
            f'example {number} must be a pair (text, record), or {{"text": ..., "value": ...}}', param="examples"
        )
    return Example(text, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _lines(path: Path) -> Iterable[Mapping[str, object]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", param="examples") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise InvalidRequest(f"{path}, line {number} is not JSON ({error})", param="examples") from error
        if not isinstance(value, dict):
            raise InvalidRequest(f"{path}, line {number} is no JSON object", param="examples")
        yield value
