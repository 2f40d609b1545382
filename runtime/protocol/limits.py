"""What a request may ask for: one table, for everybody who checks it."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_COUNT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``; ``above``: ``low`` itself is not one of them."""

    low: float
    high: float
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        return f"{'(' if self.above else '['}{self.low:g}, {self.high:g}]"


RANGES: dict[str, Range] = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0, above=True),
    "min_p": Range(0.0, 1.0),
    "top_k": Range(-1, MAX_COUNT),
    "frequency_penalty": Range(-2.0, 2.0),
    "presence_penalty": Range(-2.0, 2.0),
    "repetition_penalty": Range(0.01, 100.0),  # much less, and logits overflow
    "n": Range(1, 128),
    "logprobs": Range(-1, 100),
    "max_tokens": Range(0, MAX_COUNT),
    "min_tokens": Range(0, MAX_COUNT),
}
MAX_BIASES = 1024
"""Entries of a logit_bias: each is added in every step."""
