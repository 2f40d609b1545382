"""Keys of rows: a row's random numbers depend on (seed, choice index, fork path) and the absolute position alone.

The mixing function is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def row_key(seed: int, path: tuple[int, ...] = ()) -> int:
    """64-bit key of a row from its request's seed and the indices of the forks that lead to it."""
    key = mix64(seed & _MASK)
    for index in path:
        key = mix64(key ^ mix64(index + 1))
    return key


def choice_key(key: int, choice: int) -> int:
    """Key of choice ``choice`` of an n > 1 request; choice 0 keeps the request's own."""
    return key if choice == 0 else mix64(key ^ mix64(0xC401CE + choice))


def uniform(key: int, position: int) -> float:
    """The number in [0, 1) that decides the id at absolute ``position``: 53 bits of mix64(key ^ mix64(position))."""
    return (mix64(key ^ mix64(position)) >> 11) * (1.0 / (1 << 53))
