"""Strings that must stand in a given text: a constant of the schema can stand for all of them."""

from __future__ import annotations

import json
import re
from typing import Literal

import msgspec

Unit = Literal["words", "characters"]

_WORDS = re.compile(r"\w+(?:[-.+!/@:'’&]\w+)*|\s+|[^\w\s]+")
"""Words, with the signs that join their parts: markdown-it-py, 1.0.4, it's."""

_EDGE = r'([^\x20\\]|\\["\\])'
_INNER = r"([^\\]|\\u[0-9a-fA-F]{4}|\\[^u])"
_MOST = 4096
"""Bound of ``longest``: more repetitions cost the engine too much."""


class Substring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The strings of ``shortest`` to ``longest`` characters (0: as long as there are) that stand in ``text``, and
    neither begin nor end with white space. unit ``words``: they begin and end between words (joined
    ones are one), white space and other signs; ``characters``: anywhere.
    """

    text: str
    unit: Unit = "words"
    shortest: int = 1
    longest: int = 0

    def pieces(self) -> list[str]:
        """The text as JSON spells it, cut where a string may begin or end."""
        parts = _WORDS.findall(self.text) if self.unit == "words" else list(self.text)
        if not parts:
            return []
        # All parts are spelled in one call, with a mark between them that none of them holds.
        mark = next(chr(point) for point in range(0xE000, 0x110000) if chr(point) not in self.text)
        spelled = json.dumps(mark.join(parts), ensure_ascii=False)[1:-1]
        return spelled.replace("\x7f", "\\u007f").split(mark)

    def contained(self) -> str:
        """In the engine's notation: every run of pieces."""
        return f"%regex {msgspec.json.encode({'substring_chunks': self.pieces()}).decode()}"

    def bounded(self) -> str:
        """In the engine's notation: strings of an allowed length as JSON spells them, no white space at the ends."""
        low = max(0, self.shortest - 2)
        high = "" if not self.longest else str(max(0, min(self.longest, _MOST) - 2))
        longer = f"{_EDGE}{_INNER}{{{low},{high}}}{_EDGE}"
        if self.longest == 1:
            return f"/{_EDGE}/"
        return f"/{longer}/" if self.shortest > 1 else f"/{_EDGE}|{longer}/"
