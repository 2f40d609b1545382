"""News of several generations as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import Chunk

T = TypeVar("T")


async def together(waits: Sequence[Awaitable[T]]) -> list[T]:
    """What all of them return. Raises what the first one raises that fails, at once; the others are then not awaited
    any more."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            if not task.cancel() and not task.cancelled():
                task.exception()  # else it is logged as one that nobody looked at


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
