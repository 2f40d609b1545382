"""Calls that block, from an event loop, even while the interpreter ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def off_loop(function: Callable[[], object]) -> None:
    """Run ``function`` on a thread of the loop's pool. When the interpreter ends, no pool takes work any more: then it
    runs right here, where nothing else is left to wait."""
    try:
        waiting = asyncio.get_running_loop().run_in_executor(None, function)
    except RuntimeError:
        function()
        return
    await waiting
