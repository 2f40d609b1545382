"""Controls of a backend, as plain functions."""

from __future__ import annotations

from .backend import Backend
from .defaults import as_backend, default_backend


def _chosen(backend: object | None) -> Backend:
    return default_backend() if backend is None else as_backend(backend)


def flush_cache(backend: object | None = None) -> None:
    """Drop every cached prefix that no running request uses (of the default backend, if none is given)."""
    chosen = _chosen(backend)
    chosen.loop.wait(chosen.flush_cache())


def get_server_info(backend: object | None = None) -> dict[str, object]:
    """Counters of a backend: blocks, requests, tokens."""
    chosen = _chosen(backend)
    return chosen.loop.wait(chosen.server_info())
