"""Text of a wanted length, about one token a word, the same each time."""

from __future__ import annotations

_WORDS = (
    "river stone cloud paper lamp garden window bread letter winter road hand story music table answer door night "
    "water light summer horse field green house island market morning number picture quiet river sister teacher"
)


def words(count: int, seed: int) -> str:
    known = _WORDS.split()
    return " ".join(known[(seed * 7919 + i * i * 31 + i * 17) % len(known)] for i in range(count)) + "."
