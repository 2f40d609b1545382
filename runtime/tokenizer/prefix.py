"""The blank that SentencePiece tokenisers write in front of a text: wrong inside of one.

A definition states it in one of three ways: a normaliser that prepends a blank to every stretch between added tokens,
a pre-tokeniser that does so (``always``), or one that does so at the very beginning (``first``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Inner:
    """``definition``: the text of tokenizer.json without the blank. ``after_special``: text behind a special token goes
    without it too."""

    definition: str
    after_special: bool


def inner(definition: str) -> Inner | None:
    """None if nothing is written in front of a text anyway."""
    if '"Prepend"' not in definition and '"prepend_scheme"' not in definition:
        return None  # parsing takes a while
    data = json.loads(definition)
    found: list[str] = []
    data["normalizer"] = _without(data.get("normalizer"), "normalizers", found)
    data["pre_tokenizer"] = _without(data.get("pre_tokenizer"), "pretokenizers", found)
    return Inner(json.dumps(data, ensure_ascii=False), "always" not in found) if found else None


def _without(part: Any, several: str, found: list[str]) -> Any:
    """``part`` without the blank; where one was written is added to ``found``."""
    if not isinstance(part, dict):
        return part
    if part.get("type") == "Prepend":
        found.append("always")
        return None
    if part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never":
        found.append(part.get("prepend_scheme", "always"))
        return {**part, "prepend_scheme": "never"}
    if part.get("type") == "Sequence":
        kept = [one for inside in part[several] if (one := _without(inside, several, found)) is not None]
        return {**part, several: kept}
    return part
