"""Waiting for what happens on a backend's loop, soon after a body has returned."""

from __future__ import annotations

import time

from ramet.frontend_lang.fake import FakeBackend


def idle(backend: FakeBackend, seconds: float = 5.0) -> bool:
    """Nothing is kept and nothing runs (any more)."""
    end = time.monotonic() + seconds
    while (backend.kept or backend.running) and time.monotonic() < end:
        time.sleep(0.005)
    return not backend.kept and not backend.running
