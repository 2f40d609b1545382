"""How sure the model was of each field, from the log-probabilities of the tokens that spell it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ramet.extraction.partial import Span, pointer
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
    # Byte offsets of characters, and of the token boundaries:  0 | token 0 | token 1 | ...
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + len(character.encode("utf-8", "surrogatepass")))
    bounds = [0]
    for token in tokens:
        bounds.append(bounds[-1] + len(token))
    found: Confidence = {}
    first = 0
    for leaf in leaves:
        start, end = offsets[leaf.start], offsets[leaf.end]
        while bounds[first + 1] <= start:
            first += 1
        last = first
        while last + 1 < len(tokens) and bounds[last + 1] < end:
            last += 1
        part = logprobs[first : last + 1]
        found[pointer(leaf.path)] = {
            "raw": _mean([entry.raw for entry in part]),
            "masked": _mean([entry.masked for entry in part]),
        }
    return found


def _mean(logs: Sequence[float]) -> float:
    return round(math.exp(sum(logs) / len(logs)), 6) if logs else 1.0
