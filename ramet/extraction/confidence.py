"""How sure the model was of each field, from the log-probabilities of the tokens that spell it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ramet.extraction.fields import spelled
from ramet.runtime.frontend.partial_json import Span, pointer
from ramet.runtime.protocol.messages import TokenLogprob

Confidence = dict[str, dict[str, float]]


def confidence(
    text: str, leaves: Sequence[Span], tokens: Sequence[bytes], logprobs: Sequence[TokenLogprob]
) -> Confidence:
    """By JSON pointer of the field: ``raw`` and ``masked``, each the geometric mean of the probabilities of the tokens
    that hold a part of the field's text.

    ``raw`` is by the model alone; ``masked`` is among what the constraint allowed (1.0 where it left no choice, so that
    a field whose every token was forced has 1.0). tokens: bytes of each id of ``text``, one entry of ``logprobs`` each.
    """
    found: Confidence = {}
    for leaf, first, last in spelled(text, leaves, tokens):
        part = logprobs[first : last + 1]
        found[pointer(leaf.path)] = {
            "raw": _mean([entry.raw for entry in part]),
            "masked": _mean([entry.masked for entry in part]),
        }
    return found


def _mean(logs: Sequence[float]) -> float:
    return round(math.exp(sum(logs) / len(logs)), 6) if logs else 1.0
