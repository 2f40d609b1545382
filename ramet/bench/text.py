"""Real prose that is on every machine: descriptions and licence texts of the installed Python distributions."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from email.message import Message
from importlib.metadata import Distribution, distributions
from typing import cast

from ramet.bench.fallback import TEXT

_FIRST = ("numpy", "fastapi", "jinja2", "msgspec", "pydantic", "pyzmq", "tokenizers", "tqdm", "uvicorn", "orjson")
"""What ramet itself needs comes first, so that machines with different other packages begin with the same words."""

_LICENCE = re.compile(r"(?i)(^|/)(licen[cs]e|copying|notice)[^/]*$")
_MIN_WORDS, _LONGEST_WORD, _LONGEST_TEXT = 12, 24, 200_000


def words(minimum: int, found: Iterable[Distribution] | None = None) -> list[str]:
    """At least ``minimum`` words of prose, in an order that depends on nothing but the installed packages.

    ``found``: these distributions instead of all. Where their text does not suffice, sentences of the fallback text
    follow in ever new order.
    """
    result: list[str] = []
    for paragraph in _paragraphs(distributions() if found is None else found):
        result += paragraph
        if len(result) >= minimum:
            return result
    sentences = re.split(r"(?<=[.])\s+", " ".join(TEXT.split()))
    shuffle = random.Random(0)
    while len(result) < minimum:
        shuffle.shuffle(sentences)
        result += " ".join(sentences).split()
    return result


def _paragraphs(found: Iterable[Distribution]) -> Iterator[list[str]]:
    """Each once, whatever the number of packages under the same licence."""
    named = {_name(distribution): distribution for distribution in found}
    named.pop("", None)
    seen: set[str] = set()
    for name in sorted(named, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)):
        for text in _texts(named[name]):
            for paragraph in re.split(r"\n\s*\n", text[:_LONGEST_TEXT]):
                prose = _prose(paragraph)
                key = " ".join(prose).lower()
                if len(prose) >= _MIN_WORDS and key not in seen:
                    seen.add(key)
                    yield prose


def _name(distribution: Distribution) -> str:
    metadata = cast(Message, distribution.metadata)  # typed by a narrow protocol, and a mail message in fact
    return re.sub(r"[-_.]+", "-", metadata.get("Name") or "").lower()


def _texts(distribution: Distribution) -> Iterator[str]:
    metadata = cast(Message, distribution.metadata)
    yield str(metadata.get("Description") or metadata.get_payload() or "")
    for path in sorted(map(str, distribution.files or ())):
        if _LICENCE.search(path):
            try:
                yield distribution.read_text(path.rsplit("/", 1)[-1]) or _read(distribution, path)
            except (OSError, UnicodeDecodeError):
                continue


def _read(distribution: Distribution, path: str) -> str:
    from pathlib import Path

    return Path(str(distribution.locate_file(path))).read_text(encoding="utf-8", errors="replace")


def _prose(paragraph: str) -> list[str]:
    """Its words; none if it is markup, a table or code rather than prose."""
    text = re.sub(r"<[^>]{0,300}>|!?\[[^\]]*\]\([^)]*\)|https?://\S+", " ", paragraph)
    parts = [word for word in text.split() if len(word) <= _LONGEST_WORD and word.isascii()]
    plain = sum(word.strip(",.;:()\"'").isalpha() for word in parts)
    return parts if plain >= 0.8 * len(parts) and not re.search(r"[{}|`=]|::|--", text) else []
