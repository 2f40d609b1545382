"""Many documents through one extractor: a bounded number at a time, results in the inputs' order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeAlias

from ramet.extraction.extractor import Extractor, Outcome
from ramet.extraction.sources import Document

Submit: TypeAlias = "Callable[[Coroutine[object, object, Outcome]], Future[Outcome]]"


def in_order(
    documents: Iterable[Document], extractor: Extractor, submit: Submit, window: int
) -> Iterator[tuple[Document, Outcome]]:
    """Outcomes in the order of ``documents``, which is read only ``window`` documents ahead of what was given back.

    submit: hands a coroutine to the event loop that the extractor's client lives on. Whatever ends the iteration early
    (an error, the consumer) cancels what still runs.
    """
    running: deque[tuple[Document, Future[Outcome]]] = deque()
    try:
        for document in documents:
            running.append((document, submit(extractor.extract(document))))
            if len(running) >= window:
                yield _first(running)
        while running:
            yield _first(running)
    finally:
        for _, future in running:
            future.cancel()


def _first(running: deque[tuple[Document, Future[Outcome]]]) -> tuple[Document, Outcome]:
    document, future = running[0]
    outcome = future.result()
    running.popleft()
    return document, outcome
