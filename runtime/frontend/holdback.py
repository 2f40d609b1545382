"""Text that may be the beginning of a stop string stays back until it is known whether it is one.

Whether a row stops is the worker's decision alone; here we only make sure that nothing at or behind the beginning of
a stop was handed out when that decision arrives.

    bytes   0 ...... released ............ total
            | given to the caller | held: may begin a stop, or follows a whole one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def _failure(pattern: bytes) -> list[int]:
    """Knuth-Morris-Pratt: entry i is the length of the longest proper border of pattern[: i + 1]."""
    table = [0] * len(pattern)
    k = 0
    for i in range(1, len(pattern)):
        while k and pattern[i] != pattern[k]:
            k = table[k - 1]
        if pattern[i] == pattern[k]:
            k += 1
        table[i] = k
    return table


@dataclass(frozen=True)
class Stop:
    """A stop string, and where to go on in it after each place that does not match; shared by all that look for it."""

    text: bytes
    failure: list[int]


def stops_of(texts: Sequence[bytes]) -> list[Stop]:
    return [Stop(text, _failure(text)) for text in texts if text]


class Holdback:
    """``feed`` takes the bytes of one delta and returns the bytes that may be handed out now."""

    def __init__(self, stops: Sequence[Stop]) -> None:
        self._stops = stops
        self._states = [0] * len(self._stops)
        self._held = b""
        self.total = 0
        self.released = 0

    def feed(self, data: bytes) -> bytes:
        """A whole stop in an earlier delta was no stop (the row goes on: ``min_tokens``), so it is handed out."""
        start = self.total
        self.total += len(data)
        limit = self.total
        for index, one in enumerate(self._stops):
            stop, failure = one.text, one.failure
            state, size = self._states[index], len(stop)
            first = -1
            for position, byte in enumerate(data):
                while state and (state == size or stop[state] != byte):
                    state = failure[state - 1]
                if stop[state] == byte:
                    state += 1
                if state == size and first < 0:
                    first = start + position + 1 - size
            self._states[index] = state
            limit = min(limit, first if first >= 0 else self.total - state)
        held = self._held + data
        count = max(0, limit - self.released)
        self._held = held[count:]
        self.released += count
        return held[:count]

    @property
    def held(self) -> bytes:
        """What was fed and not handed out yet."""
        return self._held

    def finish(self, length: int | None = None) -> bytes:
        """The rest of the text, which is ``length`` bytes long in all (None: nothing is cut)."""
        end = self.total if length is None else length
        rest = self._held[: max(0, end - self.released)]
        self._held = b""
        self.released += len(rest)
        return rest
