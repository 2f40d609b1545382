"""Frequencies of the rotary embedding, from a model's metadata."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.store import RopeMeta


def inverse_frequencies(rope: RopeMeta, head_dim: int) -> NDArray[np.float32]:
    """[head_dim / 2]: radians per position of each pair, scaling applied."""
    plain = rope.base ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.scaling == "linear":
        plain = plain / rope.factor
    elif rope.scaling == "llama3":
        # The share of the plain frequency: 1 for wavelengths that fit high_freq_factor times into the original
        # context, 0 for those that fit less than low_freq_factor times, linear in the number of fits in between.
        fits = rope.original_context * plain / (2 * np.pi)
        share = (fits - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        share = np.clip(share, 0.0, 1.0)
        plain = share * plain + (1 - share) * plain / rope.factor
    return plain.astype(np.float32)
