"""The backend of programs that are run without one. The only global of the package, because it is one by definition."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

from .backend import Backend
from .errors import NoBackend

_lock = threading.RLock()
_backend: Backend | None = None
_factory: Callable[[], Backend] | None = None


def set_default_backend(backend: object | None) -> None:
    """``backend``: an Engine, a RuntimeEndpoint or any other backend (or an object with a ``backend`` attribute)."""
    global _backend
    with _lock:
        _backend = None if backend is None else as_backend(backend)


def set_default_factory(factory: Callable[[], Backend] | None) -> None:
    """Makes the default backend when the first program needs one and none was set."""
    global _factory
    _factory = factory


def default_backend() -> Backend:
    """The default backend, made now if need be. Raises NoBackend."""
    global _backend
    with _lock:
        if _backend is not None and not _backend.loop.closed:
            return _backend
        if _factory is None:
            raise NoBackend(
                "no backend: call ramet.set_default_backend(ramet.Engine()) first, or pass backend= to run()"
            )
        _backend = _factory()
        return _backend


def current_default() -> Backend | None:
    return _backend


def as_backend(value: object) -> Backend:
    """An Engine carries its backend in ``.backend``; a backend is itself."""
    inner = getattr(value, "backend", None)
    found = inner if inner is not None else value
    if not (hasattr(found, "open") and hasattr(found, "loop")):
        raise TypeError(f"{value!r} is not a backend: use ramet.Engine(...), or ramet.RuntimeEndpoint(url)")
    return cast("Backend", found)


class GlobalConfig:
    """The default backend as an attribute, for programs that look for it there."""

    @property
    def default_backend(self) -> Backend | None:
        return current_default()

    @default_backend.setter
    def default_backend(self, backend: object | None) -> None:
        set_default_backend(backend)


global_config = GlobalConfig()
