"""The structural optimum: how much of a list of requests a perfect cache would not have to compute."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence


def optimum(requests: Iterable[tuple[Sequence[int], Sequence[int]]]) -> tuple[int, int]:
    """(cached, prompt) tokens of an unbounded cache that serves ``requests`` in their order.

    requests: (prompt ids, generated ids). A prompt finds the longest beginning that any earlier prompt with its answer
    has in common with it, token by token; its last id is always computed, since logits are wanted there.
    """
    # Of all earlier sequences, the one with the longest common beginning is a neighbour in sorted order.
    earlier: list[tuple[int, ...]] = []
    cached = total = 0
    for prompt, answer in requests:
        ids = tuple(prompt)
        place = bisect_left(earlier, ids)
        neighbours = earlier[max(0, place - 1) : place + 1]
        longest = max((_common(ids, other) for other in neighbours), default=0)
        cached += min(longest, max(0, len(ids) - 1))
        total += len(ids)
        whole = ids + tuple(answer)
        earlier.insert(bisect_left(earlier, whole), whole)
    return cached, total


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    length = min(len(a), len(b))
    return next((at for at in range(length) if a[at] != b[at]), length)
