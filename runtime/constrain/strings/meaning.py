"""From a parsed pattern to the language of whole strings that it matches.

Assertions speak about the rest of the string, so conversion carries the language of all that follows:
``convert(tree, rest)`` is the language of what the tree matches followed by ``rest``, up to the end of the string.
"""

from __future__ import annotations

from functools import lru_cache

from ramet.runtime.constrain.strings.chars import WORD
from ramet.runtime.constrain.strings.lang import (
    ANY,
    CHAR,
    EMPTY,
    NOTHING,
    Chars,
    Lang,
    alt,
    both,
    negate,
    nullable,
    rep,
    seq,
)
from ramet.runtime.constrain.strings.parse import Dialect, parse
from ramet.runtime.constrain.strings.tree import Ahead, Anchor, Either, One, PatternUnsupported, Repeat, Run, Tree

UNROLL = 8
"""Bound of repetitions that are written out because assertions stand in them."""

START, WORDY, OTHER = "start", "word", "other"
"""What stands in front: nothing, a word character, any other character."""

Left = frozenset[str]

_WORD_AHEAD = seq((Chars(WORD), ANY))
_NO_WORD_AHEAD = alt((EMPTY, seq((Chars(~WORD), ANY))))


@lru_cache(maxsize=2048)
def search(pattern: str, dialect: Dialect = "ecma") -> Lang:
    """Strings in which the pattern is found (JSON Schema's rule). Raises PatternError, PatternUnsupported."""
    tree = parse(pattern, dialect)
    if not _asserts(tree):
        return seq((ANY, _plain(tree), ANY))
    at_start = convert(tree, ANY, frozenset((START,)))
    later = []
    for left, char in ((WORDY, Chars(WORD)), (OTHER, Chars(~WORD))):
        tail = convert(tree, ANY, frozenset((left,)))
        later.append((tail, char))
    if later[0][0] == later[1][0]:
        return alt((at_start, seq((rep(CHAR, 1, None), later[0][0]))))
    return alt((at_start, *(seq((ANY, char, tail)) for tail, char in later)))


@lru_cache(maxsize=2048)
def full(pattern: str, dialect: Dialect = "python") -> Lang:
    """Strings that the pattern matches from end to end."""
    return convert(parse(pattern, dialect), EMPTY, frozenset((START,)))


def convert(tree: Tree, rest: Lang, left: Left) -> Lang:
    if not _asserts(tree):
        return seq((_plain(tree), rest))
    if isinstance(tree, Run):
        return _run(tree.parts, rest, left)
    if isinstance(tree, Either):
        return alt(convert(part, rest, left) for part in tree.parts)
    if isinstance(tree, Repeat):
        return _repeat(tree, rest, left)
    if isinstance(tree, Ahead):
        ahead = convert(tree.part, ANY, left)
        return both((negate(ahead) if tree.negative else ahead, rest))
    if isinstance(tree, Anchor):
        return _anchor(tree, rest, left)
    raise AssertionError(tree)


def _anchor(anchor: Anchor, rest: Lang, left: Left) -> Lang:
    if anchor.kind == "begin":
        if left == {START}:
            return rest
        if START not in left:
            return NOTHING
        raise PatternUnsupported("'^' after something optional is not supported")
    if anchor.kind == "end":
        return EMPTY if nullable(rest) else NOTHING
    after_word = {side == WORDY for side in left}
    if len(after_word) > 1:
        raise PatternUnsupported("\\b and \\B are supported next to characters of one kind only")
    wants_word = (True in after_word) == (anchor.kind == "inside")
    return both((_WORD_AHEAD if wants_word else _NO_WORD_AHEAD, rest))


def _run(parts: tuple[Tree, ...], rest: Lang, left: Left) -> Lang:
    if not parts:
        return rest
    first, tail = parts[0], parts[1:]
    if not any(map(_asserts, tail)):
        return convert(first, _run_plain(tail, rest), left)
    if not _looks_left(Run(tail)):
        return convert(first, _run(tail, rest, left), left)
    if isinstance(first, Repeat) and first.low == 0:
        some = Repeat(first.part, 1, first.high)
        return alt((_run(tail, rest, left), _run((some, *tail), rest, left)))
    if isinstance(first, Either):
        return alt(_run((part, *tail), rest, left) for part in first.parts)
    if isinstance(first, Run):
        return _run((*first.parts, *tail), rest, left)
    return convert(first, _run(tail, rest, _left_after(first, left)), left)


def _run_plain(parts: tuple[Tree, ...], rest: Lang) -> Lang:
    return seq((*map(_plain, parts), rest))


def _repeat(tree: Repeat, rest: Lang, left: Left) -> Lang:
    tempered = _tempered(tree, rest)
    if tempered is not None:
        return tempered
    if tree.high is None or tree.high > UNROLL:
        raise PatternUnsupported("an assertion inside a long repetition is not supported")
    result: Lang = NOTHING
    for count in range(tree.low, tree.high + 1):
        result = alt((result, _run((tree.part,) * count, rest, left)))
    return result


def _tempered(tree: Repeat, rest: Lang) -> Lang | None:
    """``(?:(?!X).)*`` up to the end of the string: X is found nowhere."""
    part = tree.part
    if rest != EMPTY or tree.low != 0 or tree.high is not None or not isinstance(part, Run) or len(part.parts) != 2:
        return None
    ahead, one = part.parts
    if not isinstance(ahead, Ahead) or not ahead.negative or not isinstance(one, One) or _asserts(ahead.part):
        return None
    text = rep(Chars(one.set), 0, None)
    inner = _plain(ahead.part)
    if nullable(inner):
        return EMPTY
    return both((text, negate(seq((text, inner, ANY)))))


def _left_after(tree: Tree, left: Left) -> Left:
    """What stands in front of that which follows ``tree``."""
    if isinstance(tree, One):
        sides = set()
        if tree.set & WORD:
            sides.add(WORDY)
        if tree.set - WORD:
            sides.add(OTHER)
        return frozenset(sides)
    if isinstance(tree, (Anchor, Ahead)):
        return left
    if isinstance(tree, Run):
        for part in tree.parts:
            left = _left_after(part, left)
        return left
    if isinstance(tree, Either):
        return frozenset[str]().union(*(_left_after(part, left) for part in tree.parts))
    once = _left_after(tree.part, left)
    return once | left if tree.low == 0 else once


@lru_cache(maxsize=4096)
def _asserts(tree: Tree) -> bool:
    if isinstance(tree, (Anchor, Ahead)):
        return True
    if isinstance(tree, One):
        return False
    if isinstance(tree, Repeat):
        return _asserts(tree.part)
    return any(map(_asserts, tree.parts))


def _looks_left(tree: Tree) -> bool:
    """Whether an assertion in the tree may look at what stands in front of the tree."""
    if isinstance(tree, Anchor):
        return tree.kind != "end"
    if isinstance(tree, One):
        return False
    if isinstance(tree, (Repeat, Ahead)):
        return _looks_left(tree.part)
    return any(map(_looks_left, tree.parts))


def _plain(tree: Tree) -> Lang:
    if isinstance(tree, One):
        return Chars(tree.set)
    if isinstance(tree, Run):
        return seq(map(_plain, tree.parts))
    if isinstance(tree, Either):
        return alt(map(_plain, tree.parts))
    if isinstance(tree, Repeat):
        return rep(_plain(tree.part), tree.low, tree.high)
    raise AssertionError(tree)
