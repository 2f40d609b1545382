"""What one call of a program cost and brought: the material of `explain` and of traces."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.runtime.protocol.messages import Usage

from .where import Where


@dataclass(frozen=True, slots=True)
class CallRecord:
    """``kind``: gen or select. Times are seconds since the run began; ``path``: the branch (forks that lead to it).
    ``pieces``: (text, forced) in order. ``diverged``: what stands in the prompt where the cached part ends."""

    kind: str
    name: str | None
    where: Where
    usage: Usage
    begin: float
    end: float
    text: str
    reason: str
    path: tuple[int, ...] = ()
    diverged: str = ""
    pieces: tuple[tuple[str, bool], ...] = ()
