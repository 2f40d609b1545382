"""Weights on disk as ``QuantTensor``s under one set of names, whatever the file format."""

from __future__ import annotations

from ramet.runtime.worker.weights.read import Weights, open_weights

__all__ = ["Weights", "open_weights"]
