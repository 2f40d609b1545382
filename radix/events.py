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
    """The last ``capacity`` events, numbered; a reader that fell behind learns it from the gap in the numbers."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._events: deque[CacheEvent] = deque(maxlen=capacity)
        self._next = 0

    def add(self, event: CacheEvent) -> None:
        self._events.append(event)
        self._next += 1

    def since(self, number: int) -> tuple[int, list[CacheEvent]]:
        """(number of the first event returned, the events from ``number`` on that are still held)."""
        first = self._next - len(self._events)
        start = max(number, first)
        return start, list(self._events)[start - first :]

    @property
    def next_number(self) -> int:
        return self._next
