"""Models, written in ops only: what ``load_model`` gives is a program of the op set that it was given."""

from __future__ import annotations

from ramet.runtime.worker.models.load import Model, load_model

__all__ = ["Model", "load_model"]
