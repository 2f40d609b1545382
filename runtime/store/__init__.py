"""The model store: where models lie on disk, how they get there, and what is written beside them once."""

from __future__ import annotations

from ramet.runtime.store.meta import ModelFolder, ModelMeta, RopeMeta, SamplingMeta, WeightFile
from ramet.runtime.store.resolve import default_cache, open, resolve

__all__ = ["ModelFolder", "ModelMeta", "RopeMeta", "SamplingMeta", "WeightFile", "default_cache", "open", "resolve"]
