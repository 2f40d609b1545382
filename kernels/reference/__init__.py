"""The reference op set: plain torch in float32, eager and simple. Every other one is tested against it."""

from __future__ import annotations

from ramet.kernels.reference.ops import ReferenceOps

__all__ = ["ReferenceOps"]
