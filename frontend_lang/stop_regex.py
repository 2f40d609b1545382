"""Ends of a text that are given by regular expressions.

The worker knows strings and ids; expressions are looked for here, id by id as they arrive, so that the end does not
depend on how many come at once. The text ends where the first match begins.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hit:
    """``kept``: ids in front of the match; ``leftover``: bytes of the next id that stand in front of it, too; ``seen``:
    ids that had come when it was found; ``text``: all in front of it; ``matched``."""

    kept: int
    leftover: bytes
    seen: int
    text: str
    matched: str


class RegexStop:
    """Of one choice. ``spell``: bytes of an id."""

    def __init__(self, patterns: Sequence[str], spell: Callable[[int], bytes]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._spell = spell
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[bytes] = []
        self._text = ""

    def feed(self, ids: Sequence[int]) -> Hit | None:
        for token in ids:
            piece = self._spell(token)
            self._pieces.append(piece)
            self._text += self._decoder.decode(piece)
            found = [match for pattern in self._patterns if (match := pattern.search(self._text)) and match.group()]
            if found:
                return self._hit(min(found, key=lambda match: match.start()))
        return None

    def _hit(self, match: re.Match[str]) -> Hit:
        text = self._text[: match.start()]
        left = len(text)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for kept, piece in enumerate(self._pieces):
            shown = 0
            for at in range(len(piece)):
                if shown >= left:
                    return Hit(kept, piece[:at], len(self._pieces), text, match.group())
                shown += len(decoder.decode(piece[at : at + 1]))
            left -= shown
            if left <= 0:
                return Hit(kept + 1, b"", len(self._pieces), text, match.group())
        return Hit(len(self._pieces), b"", len(self._pieces), text, match.group())
