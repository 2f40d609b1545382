"""News of several generations as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import Chunk


async def merged(generations: Sequence[Generation]) -> AsyncIterator[list[tuple[int, Chunk]]]:
    """(number of the generation, chunk) as they come. Raises what a generation raises."""
    if len(generations) == 1:
        while chunks := await generations[0].batch():
            yield [(0, chunk) for chunk in chunks]
        return
    waiting = {asyncio.create_task(generation.batch()): at for at, generation in enumerate(generations)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            news: list[tuple[int, Chunk]] = []
            for task in done:
                at = waiting.pop(task)
                if chunks := task.result():
                    news += [(at, chunk) for chunk in chunks]
                    waiting[asyncio.create_task(generations[at].batch())] = at
            if news:
                yield news
    finally:
        for task in waiting:
            task.cancel()
