"""Many items through one worker: a bounded number at a time, results in the items' order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(items: Iterable[T], start: Callable[[T], Future[R]], window: int) -> Iterator[tuple[T, R]]:
    """Results in the order of ``items``, which is read only ``window`` items ahead of what was given back.

    start: begins the work on one item (hands a coroutine to an event loop, say). Whatever ends the iteration early (an
    error, the consumer) cancels what still runs.
    """
    running: deque[tuple[T, Future[R]]] = deque()
    try:
        for item in items:
            running.append((item, start(item)))
            if len(running) >= window:
                yield _first(running)
        while running:
            yield _first(running)
    finally:
        for _, future in running:
            future.cancel()


def _first(running: deque[tuple[T, Future[R]]]) -> tuple[T, R]:
    item, future = running[0]
    result = future.result()
    running.popleft()
    return item, result
