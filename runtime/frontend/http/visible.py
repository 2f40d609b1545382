"""Which of the generated ids belong to the text that is shown."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.runtime.protocol.messages import StopHit


def visible(ids: Sequence[int], offset: int, stop: StopHit | None, *, with_stop: bool = False) -> int:
    """How many of ``ids``, which begin at absolute ``offset``, belong to the text: not those of a stop (all the same
    ``with_stop``), but the one that a stop begins inside."""
    if stop is None or with_stop:
        return len(ids)
    return max(0, min(len(ids), stop.at - offset + (1 if stop.leftover else 0)))
