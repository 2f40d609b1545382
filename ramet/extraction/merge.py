"""Documents longer than the context: cut into chunks, extracted one by one, and their records merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ramet.runtime.frontend.partial_json import Path, pointer


class Tokens(Protocol):
    def encode(self, text: str, *, special: bool = False) -> list[int]: ...

    def token_bytes(self, id: int) -> bytes: ...


@dataclass(frozen=True)
class Piece:
    """One chunk: its text, and the character of the document where it begins."""

    text: str
    start: int


def chunks(text: str, room: int, tokens: Tokens) -> list[Piece]:
    """``text`` in chunks of at most ``room`` tokens, cut at ends of paragraphs, lines, sentences or words, in this
    order of preference. Joined, they are the text."""
    pieces, start = list[Piece](), 0
    while start < len(text):
        end = _reach(text[start:], room, tokens)
        if start + end < len(text):
            end = _break(text[start : start + end])
        pieces.append(Piece(text[start : start + end], start))
        start += end
    return pieces


def _reach(text: str, room: int, tokens: Tokens) -> int:
    """Characters from the beginning of ``text`` that take at most ``room`` tokens (1 at least)."""
    # More characters than room tokens can hold are not looked at: a token has seldom more than a dozen.
    text = text[: 16 * room]
    ids = tokens.encode(text)
    if len(ids) <= room:
        return len(text)
    size = len(b"".join(map(tokens.token_bytes, ids[:room])).decode(errors="ignore"))
    # Cut there, the rest may encode differently: a little less is sure to fit.
    while size > 1 and len(tokens.encode(text[:size])) > room:
        size -= max(1, size // 64)
    return max(1, size)


def _break(text: str) -> int:
    """Where to cut the last third of ``text``, if there is a good place; else its end."""
    least = len(text) * 2 // 3
    for mark in ("\n\n", "\n", ". ", " "):
        found = text.rfind(mark, least)
        if found >= 0:
            return found + len(mark)
    return len(text)


def merged(values: Sequence[object]) -> tuple[object, dict[str, int]]:
    """One record of the chunks' records, and from which chunk (number from 0) each item of its arrays came.

    Arrays are joined; of every other field the first value that is not null or empty counts.
    """
    origins: dict[str, int] = {}
    return _merge(list(enumerate(values)), (), origins), origins


def _merge(values: list[tuple[int, object]], path: Path, origins: dict[str, int]) -> object:
    there = [(chunk, value) for chunk, value in values if value not in (None, "", [], {})]
    if not there:
        return values[0][1] if values else None
    first = there[0][1]
    if isinstance(first, Mapping):
        objects = [(chunk, value) for chunk, value in there if isinstance(value, Mapping)]
        names = dict.fromkeys(name for _, value in objects for name in value)
        return {
            name: _merge([(chunk, value[name]) for chunk, value in objects if name in value], (*path, name), origins)
            for name in names
        }
    if isinstance(first, list):
        joined = list[object]()
        for chunk, value in there:
            for item in value if isinstance(value, list) else []:
                origins[pointer((*path, len(joined)))] = chunk
                joined.append(item)
        return joined
    return first
