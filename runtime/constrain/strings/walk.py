"""Questions about languages: emptiness, disjointness, size, length; by derivatives, and bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from ramet.runtime.constrain.strings.chars import CharSet
from ramet.runtime.constrain.strings.lang import (
    CHAR,
    NOTHING,
    Alt,
    Both,
    Chars,
    Lang,
    Not,
    Rep,
    Seq,
    Texts,
    alt,
    both,
    contains,
    derive,
    nullable,
    seq,
)

STATES = 400
"""Bound of the searches below: past it the answer is "unknown"."""

SAMPLES = 6
"""Of each part of an intersection."""

LONGEST_SAMPLE = 64
"""Bound of the repetitions in a sample."""

CLASSES = 64
"""Bound of the character classes looked at in one state."""


def representatives(lang: Lang) -> list[int] | None:
    """One character of each set of characters that lead to the same derivative; None if there are over ``CLASSES``."""
    sets: dict[CharSet, None] = {}
    singles: dict[int, None] = {}
    for found in first_sets(lang):
        if isinstance(found, int):
            singles[found] = None
        else:
            sets[found] = None
    edges = {0}
    for group in sets:
        for first, last in group.ranges:
            edges.update((first, last + 1))
    signatures: dict[tuple[bool, ...], int] = {}
    for edge in sorted(edges):
        if edge > 0x10FFFF or 0xD800 <= edge <= 0xDFFF:
            continue
        point = edge
        while point in singles:
            point += 1
        signatures.setdefault(tuple(point in group for group in sets), point)
        if len(signatures) + len(singles) > CLASSES:
            return None
    return [*signatures.values(), *singles]


def first_sets(lang: Lang) -> Iterator[CharSet | int]:
    """Sets and single characters tested by ``derive`` at the first character."""
    if isinstance(lang, Chars):
        yield lang.set
    elif isinstance(lang, Texts):
        yield from {ord(text[0]) for text in lang.texts if text}
    elif isinstance(lang, Seq):
        for part in lang.parts:
            yield from first_sets(part)
            if not nullable(part):
                break
    elif isinstance(lang, (Alt, Both)):
        for part in lang.parts:
            yield from first_sets(part)
    else:
        yield from first_sets(lang.part)


def empty(lang: Lang, states: int = STATES) -> bool | None:
    """Whether no string is in the language; None if that would take more than ``states`` states to say."""
    if isinstance(lang, Texts):
        return not lang.texts
    if lang.plain:
        return _plain_empty(lang)
    if isinstance(lang, Both) and _found_by_samples(lang):
        return False
    seen: set[Lang] = {lang}
    queue: deque[Lang] = deque([lang])
    while queue:
        state = queue.popleft()
        if nullable(state):
            return False
        if state.plain and not _plain_empty(state):
            return False
        points = representatives(state)
        if len(seen) > states or points is None:
            return None
        for point in points:
            target = derive(state, point)
            if target != NOTHING and target not in seen:
                seen.add(target)
                queue.append(target)
    return True


def _found_by_samples(lang: Both) -> bool:
    """Most searches for a common string end here."""
    for index, part in enumerate(lang.parts):
        if part.plain:
            others = (*lang.parts[:index], *lang.parts[index + 1 :])
            if any(all(contains(other, text) for other in others) for text in islice(samples(part), SAMPLES)):
                return True
    return False


def samples(lang: Lang) -> Iterator[str]:
    """A few short strings of a plain language."""
    if isinstance(lang, Chars):
        yield from (chr(first) for first, _ in lang.set.ranges)
    elif isinstance(lang, Texts):
        yield from lang.texts
    elif isinstance(lang, Alt):
        for part in lang.parts:
            yield from islice(samples(part), 2)
    elif isinstance(lang, Rep):
        if lang.low == 0:
            yield ""
        count = max(lang.low, 1)
        if count <= LONGEST_SAMPLE:
            yield from (text * count for text in samples(lang.part))
    elif isinstance(lang, Seq):
        options = [list(islice(samples(part), 3)) for part in lang.parts]
        for turn in range(3):
            if all(options):
                yield "".join(option[min(turn, len(option) - 1)] for option in options)


def surely_empty(lang: Lang, states: int = STATES) -> bool:
    """Whether the language is found to be empty; a search is made only where parts may contradict each other."""
    if lang.plain:
        return _plain_empty(lang)
    if isinstance(lang, Both) and not _doubtful(lang):
        low, high = lengths(lang)
        return high is not None and low > high
    return empty(lang, states) is True


def _doubtful(lang: Both) -> bool:
    """Whether more than lengths and listed exceptions meet one pattern."""
    patterns = 0
    exceptions = 0
    for part in lang.parts:
        if isinstance(part, Not):
            if isinstance(part.part, Texts):
                exceptions = 1
            else:
                patterns += 1
        elif not (isinstance(part, Rep) and part.part == CHAR):
            patterns += 1
    high = lengths(lang)[1]
    return patterns > 1 or (exceptions > 0 and high is not None and high <= 3)


def _plain_empty(lang: Lang) -> bool:
    if isinstance(lang, Chars):
        return not lang.set
    if isinstance(lang, Texts):
        return not lang.texts
    if isinstance(lang, Rep):
        return lang.low > 0 and _plain_empty(lang.part)
    if isinstance(lang, Seq):
        return any(map(_plain_empty, lang.parts))
    assert isinstance(lang, Alt)
    return all(map(_plain_empty, lang.parts))


def disjoint(left: Lang, right: Lang, states: int = STATES) -> bool | None:
    """Whether no string is in both; None if unknown."""
    return empty(both((left, right)), states)


def lengths(lang: Lang) -> tuple[int, int | None]:
    """Bounds of the length of the language's strings (exact for plain languages that are not empty)."""
    if isinstance(lang, Chars):
        return 1, 1
    if isinstance(lang, Texts):
        sizes = [len(text) for text in lang.texts] or [0]
        return min(sizes), max(sizes)
    if isinstance(lang, Not):
        return 0, None
    if isinstance(lang, Rep):
        low, high = lengths(lang.part)
        return low * lang.low, None if lang.high is None or high is None else high * lang.high
    spans = [lengths(part) for part in lang.parts]
    lows = [low for low, _ in spans]
    highs = [high for _, high in spans]
    known = [high for high in highs if high is not None]
    unbounded = len(known) < len(highs)
    if isinstance(lang, Seq):
        return sum(lows), None if unbounded else sum(known)
    if isinstance(lang, Alt):
        return min(lows), None if unbounded else max(known)
    return max(lows), min(known) if known else None


def finite(lang: Lang, limit: int) -> list[str] | None:
    """The strings of the language if they are at most ``limit`` and easily listed; else None."""
    if isinstance(lang, Texts):
        return list(lang.texts) if len(lang.texts) <= limit else None
    if isinstance(lang, Chars):
        if lang.set.size > limit:
            return None
        return [chr(point) for first, last in lang.set.ranges for point in range(first, last + 1)]
    if isinstance(lang, Alt):
        found: dict[str, None] = {}
        for part in lang.parts:
            listed = finite(part, limit)
            if listed is None:
                return None
            found.update(dict.fromkeys(listed))
        return list(found) if len(found) <= limit else None
    if isinstance(lang, Seq):
        texts = [""]
        for part in lang.parts:
            listed = finite(part, limit)
            if listed is None or len(texts) * len(listed) > limit:
                return None
            texts = [head + tail for head in texts for tail in listed]
        return list(dict.fromkeys(texts))
    if isinstance(lang, Both):
        for part in lang.parts:
            listed = None if isinstance(part, Not) else finite(part, limit)
            if listed is not None:
                return [text for text in listed if contains(lang, text)]
        return None
    if isinstance(lang, Rep) and lang.high is not None and lang.high <= 8:
        return finite(alt(seq([lang.part] * count) for count in range(lang.low, lang.high + 1)), limit)
    return None
