"""Languages of strings over code points: a small regular expression algebra with intersection and complement.

Constructors simplify, so equal-looking languages are often equal objects; ``NOTHING`` is the empty language. Values are
immutable and keep their hash, because languages are keys of many tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Union

from ramet.runtime.constrain.strings.chars import ALL, CharSet, charset


class _Node:
    __slots__ = ("_hash", "_key", "plain")

    plain: bool
    """Whether the language is written without intersection and complement."""

    def __init__(self, plain: bool, *key: object) -> None:
        self.plain = plain
        self._key = key
        self._hash = hash((type(self), *key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self._hash == hash(other) and self._key == other._key

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._key!r}"


class Chars(_Node):
    """One character of the set."""

    __slots__ = ("set",)

    def __init__(self, chars: CharSet) -> None:
        super().__init__(True, chars)
        self.set = chars


class Texts(_Node):
    """A finite set of strings, by their listing. ``NOTHING`` and ``EMPTY`` are of this kind."""

    __slots__ = ("texts",)

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = dict.fromkeys(texts)
        super().__init__(True, frozenset(self.texts))


class Seq(_Node):
    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Lang, ...]) -> None:
        super().__init__(all(part.plain for part in parts), parts)
        self.parts = parts


class Alt(_Node):
    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Lang, ...]) -> None:
        super().__init__(all(part.plain for part in parts), parts)
        self.parts = parts


class Both(_Node):
    """Intersection."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Lang, ...]) -> None:
        super().__init__(False, parts)
        self.parts = parts


class Not(_Node):
    """Every string that is not in ``part``."""

    __slots__ = ("part",)

    def __init__(self, part: Lang) -> None:
        super().__init__(False, part)
        self.part = part


class Rep(_Node):
    """``high`` None: without an upper bound."""

    __slots__ = ("high", "low", "part")

    def __init__(self, part: Lang, low: int, high: int | None) -> None:
        super().__init__(part.plain, part, low, high)
        self.part = part
        self.low = low
        self.high = high


Lang = Union[Chars, Texts, Seq, Alt, Both, Not, Rep]  # noqa: UP007  (evaluated on Python 3.10 too)

NOTHING = Texts(())
EMPTY = Texts(("",))
"""The empty string alone."""
CHAR = Chars(ALL)
ANY = Rep(CHAR, 0, None)
"""Every string."""


def seq(parts: Iterable[Lang]) -> Lang:
    flat: list[Lang] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        for item in part.parts if isinstance(part, Seq) else (part,):
            if item == EMPTY or (item == ANY and flat and flat[-1] == ANY):
                continue
            if isinstance(item, Texts) and len(item.texts) == 1 and flat:
                last = flat[-1]
                if isinstance(last, Texts) and len(last.texts) == 1:
                    flat[-1] = Texts((next(iter(last.texts)) + next(iter(item.texts)),))
                    continue
            before = flat[-1] if flat else None
            if isinstance(before, Rep) and isinstance(before.part, Seq) and before.part.parts[0] == item:
                # (XY)*X is X(YX)*, which tells the engine sooner where it is
                flat[-1:] = [item, Rep(seq((*before.part.parts[1:], item)), before.low, before.high)]
                continue
            flat.append(item)
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(parts: Iterable[Lang]) -> Lang:
    flat: dict[Lang, None] = {}
    ranges: list[tuple[int, int]] = []
    texts: dict[str, None] = {}
    for part in parts:
        for item in part.parts if isinstance(part, Alt) else (part,):
            if item == ANY:
                return ANY
            if isinstance(item, Chars):
                ranges.extend(item.set.ranges)
            elif isinstance(item, Texts):
                texts.update(item.texts)
            else:
                flat[item] = None
    items: list[Lang] = []
    if texts:
        items.append(Texts(texts))
    if ranges:
        items.append(Chars(charset(ranges)))
    items += flat
    if not items:
        return NOTHING
    return items[0] if len(items) == 1 else Alt(tuple(items))


def both(parts: Iterable[Lang]) -> Lang:
    flat: dict[Lang, None] = {}
    listed: Texts | None = None
    without: dict[str, None] = {}
    for part in parts:
        for item in part.parts if isinstance(part, Both) else (part,):
            if item == NOTHING:
                return NOTHING
            if isinstance(item, Texts):
                listed = item if listed is None else Texts(text for text in listed.texts if text in item.texts)
            elif isinstance(item, Not) and isinstance(item.part, Texts):
                without.update(item.part.texts)
            elif item != ANY:
                flat[item] = None
    if listed is not None:
        return Texts(
            text for text in listed.texts if text not in without and all(contains(item, text) for item in flat)
        )
    items: list[Lang] = list(flat)
    if without:
        items.append(Not(Texts(without)))
    if not items:
        return ANY
    return items[0] if len(items) == 1 else Both(tuple(items))


def negate(part: Lang) -> Lang:
    if isinstance(part, Not):
        return part.part
    if part == NOTHING:
        return ANY
    if part == ANY:
        return NOTHING
    return Not(part)


def rep(part: Lang, low: int, high: int | None) -> Lang:
    if high == 0:
        return EMPTY
    if part == NOTHING:
        return EMPTY if low == 0 else NOTHING
    if part == EMPTY or (low, high) == (1, 1):
        return part
    return Rep(part, low, high)


def literal(text: str) -> Lang:
    return Texts((text,))


def literals(texts: Iterable[str]) -> Lang:
    return Texts(texts)


def length(low: int, high: int | None) -> Lang:
    """Strings of ``low`` to ``high`` code points."""
    return ANY if (low, high) == (0, None) else rep(CHAR, low, high)


def nullable(lang: Lang) -> bool:
    """Whether the empty string is in the language."""
    if isinstance(lang, Chars):
        return False
    if isinstance(lang, Texts):
        return "" in lang.texts
    if isinstance(lang, Seq):
        return all(map(nullable, lang.parts))
    if isinstance(lang, Alt):
        return any(map(nullable, lang.parts))
    if isinstance(lang, Both):
        return all(map(nullable, lang.parts))
    if isinstance(lang, Not):
        return not nullable(lang.part)
    return lang.low == 0 or nullable(lang.part)


def contains(lang: Lang, text: str) -> bool:
    """Whether ``text`` is in the language."""
    state = lang
    for index, char in enumerate(text):
        if isinstance(state, Texts):
            return text[index:] in state.texts
        if state == ANY:
            return True
        state = derive(state, ord(char))
    return nullable(state)


def derive(lang: Lang, point: int) -> Lang:
    """What may follow the character ``point`` at the start."""
    return _DERIVE[type(lang)](lang, point)


def _chars(lang: Chars, point: int) -> Lang:
    return EMPTY if point in lang.set else NOTHING


def _texts(lang: Texts, point: int) -> Lang:
    char = chr(point)
    return Texts(text[1:] for text in lang.texts if text.startswith(char))


def _seq(lang: Seq, point: int) -> Lang:
    first, rest = lang.parts[0], lang.parts[1:]
    head = seq((derive(first, point), *rest))
    return alt((head, derive(seq(rest), point))) if nullable(first) else head


def _rep(lang: Rep, point: int) -> Lang:
    if lang == ANY:
        return ANY
    inner = derive(lang.part, point)
    if inner == NOTHING:
        return NOTHING
    low = max(lang.low - 1, 0)
    high = None if lang.high is None else lang.high - 1
    return seq((inner, rep(lang.part, low, high)))


_DERIVE: dict[type, Callable[..., Lang]] = {
    Chars: _chars,
    Texts: _texts,
    Seq: _seq,
    Alt: lambda lang, point: alt(derive(part, point) for part in lang.parts),
    Both: lambda lang, point: both([derive(part, point) for part in lang.parts]),
    Not: lambda lang, point: negate(derive(lang.part, point)),
    Rep: _rep,
}
