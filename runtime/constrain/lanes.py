"""Which lane serves a constraint: a pure function of the specification and the code's version, decided from the parsed
expression before anything is built. The two lanes' masks differ inside forced text, so no request may change lane.

The table lane takes choices and regexes whose automaton is small: at most ``STATES`` states, and at most ``EDGES``
characters leading out of them, counted over all states (any number of characters beyond ASCII counts as ``BEYOND``).
"""

from __future__ import annotations

from typing import Literal

from ramet.runtime.constrain.strings.chars import CharSet
from ramet.runtime.constrain.strings.lang import NOTHING, Lang, Texts, derive
from ramet.runtime.constrain.strings.walk import first_sets, representatives
from ramet.runtime.protocol.messages import ConstraintSpec

STATES = 512
EDGES = 1500
BEYOND = 64
CHARACTERS = 20_000
"""Bound of a choice's texts together."""

Lane = Literal["engine", "table"]


def lane_of(spec: ConstraintSpec, lang: Lang | None) -> Lane:
    """``lang``: the texts of the specification, where it is a choice or a regex."""
    if spec.kind not in ("choice", "regex") or lang is None or not lang.plain:
        return "engine"
    if isinstance(lang, Texts) and sum(map(len, lang.texts)) > CHARACTERS:
        return "engine"
    return "table" if _small(lang) else "engine"


def _small(lang: Lang) -> bool:
    edges = 0
    seen: set[Lang] = {lang}
    stack: list[Lang] = [lang]
    while stack:
        state = stack.pop()
        points = representatives(state)
        if points is None:
            return False
        edges += _leading_out(state)
        if edges > EDGES:
            return False
        for point in points:
            target = derive(state, point)
            if target != NOTHING and target not in seen:
                seen.add(target)
                if len(seen) > STATES:
                    return False
                stack.append(target)
    return True


def _leading_out(state: Lang) -> int:
    """Characters that lead out of a state (of a plain language: all that its first sets hold)."""
    ascii_points: set[int] = set()
    beyond = False
    for group in first_sets(state):
        if isinstance(group, int):
            ascii_points.add(group)
            beyond |= group > 0x7F
        else:
            ascii_points.update(_ascii(group))
            beyond |= group.ranges[-1][1] > 0x7F if group else False
    return len([point for point in ascii_points if point <= 0x7F]) + (BEYOND if beyond else 0)


def _ascii(group: CharSet) -> list[int]:
    return [point for first, last in group.ranges if first <= 0x7F for point in range(first, min(last, 0x7F) + 1)]
