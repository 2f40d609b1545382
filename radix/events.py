"""What happens in the tree, as a stream for routers and the dashboard."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from .namespace import Namespace


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """``stored``: ``blocks`` now hold ``ids`` (int32 bytes), which follow ``depth`` blocks of their namespace's root.
    ``removed``: those blocks are gone. ``cleared``: the whole device tier is."""

    kind: Literal["stored", "removed", "cleared"]
    namespace: Namespace
    depth: int = 0
    blocks: tuple[int, ...] = ()
    ids: bytes = b""


class EventLog:
    """The last events, numbered: at most ``capacity`` of them, and ``limit_bytes`` of ids. A reader that fell behind
    learns it from the gap in the numbers."""

    def __init__(self, capacity: int = 10_000, limit_bytes: int = 8 * 1024 * 1024) -> None:
        self._events: deque[CacheEvent] = deque()
        self._capacity = capacity
        self._limit = limit_bytes
        self._bytes = 0
        self._next = 0

    def add(self, event: CacheEvent) -> None:
        self._events.append(event)
        self._bytes += len(event.ids)
        self._next += 1
        while len(self._events) > self._capacity or (self._bytes > self._limit and len(self._events) > 1):
            self._bytes -= len(self._events.popleft().ids)

    def since(self, number: int) -> tuple[int, list[CacheEvent]]:
        """(number of the first event returned, the events from ``number`` on that are still held)."""
        first = self._next - len(self._events)
        start = max(number, first)
        return start, list(self._events)[start - first :]

    @property
    def next_number(self) -> int:
        return self._next
