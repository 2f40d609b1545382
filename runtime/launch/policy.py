"""When a child is restarted, and when it counts as hung. Pure: time is an argument."""

from __future__ import annotations

from collections import deque

from ramet.runtime.protocol.pulse import BUSY, PulseState

HANG_FLOOR_S = 5.0
HANG_FACTOR = 30.0


class HangWatch:
    """A child hangs when it is busy and its progress has stood still for 30 predicted steps, never under 5 seconds.

    Loading is exempt. Time is counted in looks, each worth ``cap_s`` at most, so that a watcher that was itself stopped
    for a while does not blame the child.
    """

    def __init__(self, cap_s: float) -> None:
        self._cap_s = cap_s
        self._seen = -1
        self._still_s = 0.0

    def hangs(self, state: PulseState | None, elapsed_s: float) -> bool:
        """One look, ``elapsed_s`` after the last."""
        if state is None or state.phase != BUSY or state.progress != self._seen:
            self._seen = -1 if state is None else state.progress
            self._still_s = 0.0
            return False
        self._still_s += min(elapsed_s, self._cap_s)
        return self._still_s > max(HANG_FLOOR_S, HANG_FACTOR * state.step_s)


class RestartPolicy:
    """A child that was at work is restarted at once. One that keeps dying before it is ready is given up after
    ``unready_limit`` deaths in a row, any after ``limit`` deaths within ``window_s``."""

    def __init__(self, *, unready_limit: int = 5, limit: int = 25, window_s: float = 60.0) -> None:
        self._unready_limit = unready_limit
        self._limit = limit
        self._window_s = window_s
        self._deaths: deque[float] = deque()
        self._unready = 0

    def died(self, now: float, *, was_ready: bool) -> float | None:
        """Seconds to wait before the restart; None: give up."""
        self._deaths.append(now)
        while self._deaths[0] < now - self._window_s:
            self._deaths.popleft()
        self._unready = 0 if was_ready else self._unready + 1
        if self._unready >= self._unready_limit or len(self._deaths) >= self._limit:
            return None
        return 0.0 if was_ready else 0.1 * 2**self._unready
