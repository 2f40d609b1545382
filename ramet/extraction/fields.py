"""Which tokens of an answer spell which of its fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ramet.runtime.frontend.partial_json import Path, Span, read


def spelled(text: str, leaves: Sequence[Span], tokens: Sequence[bytes]) -> Iterator[tuple[Span, int, int]]:
    """Of each leaf: the tokens [first, last] that hold a part of it. tokens: bytes of each id of ``text``."""
    # Byte offsets of characters, and of the token boundaries:  0 | token 0 | token 1 | ...
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + len(character.encode("utf-8", "surrogatepass")))
    bounds = [0]
    for token in tokens:
        bounds.append(bounds[-1] + len(token))
    first = 0
    for leaf in leaves:
        start, end = offsets[leaf.start], offsets[leaf.end]
        while bounds[first + 1] <= start:
            first += 1
        last = first
        while last + 1 < len(tokens) and bounds[last + 1] < end:
            last += 1
        yield leaf, first, last


def sampled(text: str, tokens: Sequence[bytes], forced: bytes) -> Counter[str]:
    """Sampled tokens by field, the items of an array as one (``parts/*/label``); a token that spells the end of one
    field and the beginning of the next counts for the first. Each of them took a step of the model."""
    found: Counter[str] = Counter()
    try:
        leaves = read(text).leaves
    except ValueError:  # no JSON
        return found
    counted = -1
    for leaf, first, last in spelled(text, leaves, tokens):
        steps = sum(not forced[at] for at in range(max(first, counted + 1), last + 1))
        if steps:
            found[name(leaf.path)] += steps
        counted = max(counted, last)
    return found


def name(path: Path) -> str:
    """Of a field, whatever the number of the item that it is in."""
    return "/".join("*" if isinstance(part, int) else part for part in path) or "(whole record)"
