"""A process's pulse: a few bytes in a memory-mapped file of the run directory, written in place, read by ``launch``.

A hung process cannot report that it hangs, so the reader compares what it saw last. Writing costs no system call, and
a file outlives its writer's crash.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

LOADING, IDLE, BUSY = 0, 1, 2
_LAYOUT = struct.Struct("<QQd")


def pulse_path(run_dir: str, role: str) -> Path:
    """``role``: scheduler or worker."""
    return Path(run_dir) / f"{role}.pulse"


@dataclass(frozen=True)
class PulseState:
    """``progress`` counts steps or loop turns; ``step_s``: seconds that a step is predicted to take (0: unknown)."""

    progress: int
    phase: int
    step_s: float


class Pulse:
    """The writing side. A new one begins with LOADING, which the reader exempts from its time limit."""

    def __init__(self, path: Path) -> None:
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(_LAYOUT.pack(0, LOADING, 0.0))
        os.replace(temporary, path)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._progress = 0

    def busy(self, step_s: float = 0.0) -> None:
        """Work is under way, predicted to take ``step_s`` seconds."""
        self._progress += 1
        _LAYOUT.pack_into(self._map, 0, self._progress, BUSY, step_s)

    def idle(self) -> None:
        """Nothing to do; also says that loading is over."""
        self._progress += 1
        _LAYOUT.pack_into(self._map, 0, self._progress, IDLE, 0.0)


def read_pulse(path: Path) -> PulseState | None:
    """None where there is no pulse (yet)."""
    try:
        return PulseState(*_LAYOUT.unpack(path.read_bytes()))
    except (OSError, struct.error):
        return None
