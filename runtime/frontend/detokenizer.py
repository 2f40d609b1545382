"""Token ids to text, piece by piece: bytes in between, so that a character split over tokens is never broken."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

_utf8 = codecs.getincrementaldecoder("utf-8")


class TokenTable(Protocol):
    """The part of the tokeniser that the client needs."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def token_table(self) -> Sequence[bytes]:
        """Bytes of each id; b"" for special tokens."""


class Detokenizer:
    """Monotone: what ``feed`` returned is never taken back, and joined it is the decoding of all bytes at once.

    Bytes that may still become a character are kept; bytes that cannot become U+FFFD (as in ``bytes.decode`` with
    ``replace``).
    """

    def __init__(self) -> None:
        self._decoder = _utf8("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def finish(self, data: bytes = b"") -> str:
        return self._decoder.decode(data, True)


def spell(table: Sequence[bytes], ids: Iterable[int]) -> bytes:
    """Bytes of ``ids``; ids that a padded vocabulary adds have none."""
    size = len(table)
    return b"".join([table[token] for token in ids if token < size])
