"""Languages as plain values that JSON can hold, and back."""

from __future__ import annotations

from typing import Any

from ramet.runtime.constrain.strings.chars import CharSet
from ramet.runtime.constrain.strings.lang import Alt, Both, Chars, Lang, Not, Rep, Seq, Texts

LangData = list[Any]
"""[kind, content...]: see ``encode``."""


def encode(lang: Lang) -> LangData:
    if isinstance(lang, Chars):
        return ["chars", [list(span) for span in lang.set.ranges]]
    if isinstance(lang, Texts):
        return ["texts", list(lang.texts)]
    if isinstance(lang, Not):
        return ["not", encode(lang.part)]
    if isinstance(lang, Rep):
        return ["rep", encode(lang.part), lang.low, lang.high]
    kind = "seq" if isinstance(lang, Seq) else "alt" if isinstance(lang, Alt) else "both"
    return [kind, [encode(part) for part in lang.parts]]


def decode(data: LangData) -> Lang:
    """As it was encoded: nothing is simplified again."""
    kind, content = data[0], data[1]
    if kind == "chars":
        return Chars(CharSet(tuple((first, last) for first, last in content)))
    if kind == "texts":
        return Texts(content)
    if kind == "not":
        return Not(decode(content))
    if kind == "rep":
        return Rep(decode(content), data[2], data[3])
    parts = tuple(decode(part) for part in content)
    return Seq(parts) if kind == "seq" else Alt(parts) if kind == "alt" else Both(parts)
