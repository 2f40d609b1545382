"""One kind of object, ready to be written: named keys, classes of other keys, what must be together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

from ramet.runtime.constrain.schema.clauses import Clause, absent, close, present
from ramet.runtime.constrain.schema.context import Conjunction
from ramet.runtime.constrain.schema.objects import Layer, ObjectBranch, Somewhere
from ramet.runtime.constrain.schema.scalars import Literal
from ramet.runtime.constrain.strings.lang import ANY, Lang, both, contains, literals, negate
from ramet.runtime.constrain.strings.walk import finite, surely_empty
from ramet.runtime.protocol.errors import ConstraintTooComplex

PATTERNS = 7
"""Bound of the different key patterns of one object: their combinations are looked at one by one."""

LISTED = 200
"""Bound of key names that are written out where propertyNames lists them."""

EMPTY_STATES = 150


@dataclass(frozen=True, slots=True)
class KeyClass:
    """Keys of a language, and what their values are."""

    lang: Lang
    value: Conjunction


@dataclass(slots=True)
class Flag:
    """Something that at least one key must do: values of named keys, and of classes by index, that do it."""

    keys: dict[str, Conjunction] = field(default_factory=dict)
    classes: dict[int, Conjunction] = field(default_factory=dict)


@dataclass(slots=True)
class ObjectShape:
    """``clauses``: closed under resolution, units left out (they are in ``required``, or the key is gone)."""

    keys: dict[str, Conjunction]
    required: frozenset[str]
    classes: list[KeyClass]
    clauses: list[Clause]
    low: int
    high: int | None
    flags: list[Flag]

    def children(self) -> Iterator[Conjunction]:
        yield from self.keys.values()
        for item in self.classes:
            yield item.value
        for flag in self.flags:
            yield from flag.keys.values()
            yield from flag.classes.values()

    def productive(self, known: set[Conjunction]) -> bool:
        if not all(self.keys[key] in known for key in self.required):
            return False
        open_ended = any(item.value in known for item in self.classes)
        if not open_ended and sum(value in known for value in self.keys.values()) < self.low:
            return False
        return all(
            any(value in known for value in (*flag.keys.values(), *flag.classes.values())) for flag in self.flags
        )


def object_shape(branch: ObjectBranch) -> ObjectShape | None:
    """None if no object fits."""
    layers = branch.closed_layers()
    context = branch.context
    names = context.scalars.strings(branch.names)
    keys: dict[str, Conjunction] = {}
    clauses = list(branch.clauses)
    for key in _named(branch, layers, names):
        value = context.canonical(branch.conjunction(key, layers))
        if (branch.names and not contains(names, key)) or not context.possible(value):
            clauses.append(absent(key))
        else:
            keys[key] = value
    closed = close(clauses)
    if closed is None:
        return None
    gone = {key for clause in closed if len(clause) == 1 for key, sign in clause if not sign}
    required = frozenset(key for clause in closed if len(clause) == 1 for key, sign in clause if sign)
    classes, makers = _classes(branch, layers, names, [*keys, *gone])
    keys = {key: value for key, value in keys.items() if key not in gone}
    high = branch.high if classes or branch.high is None or branch.high < len(keys) else None
    low = branch.low if branch.low > len(required) else 0
    if (high is not None and high < max(low, len(required))) or (not classes and len(keys) < low):
        return None
    flags = [_flag(branch, somewhere, keys, classes, makers) for somewhere in branch.somewhere]
    if not all(flag.keys or flag.classes for flag in flags):
        return None
    return ObjectShape(keys, required, classes, [c for c in closed if len(c) > 1], low, high, flags)


def _named(branch: ObjectBranch, layers: Iterable[Layer], names: Lang) -> list[str]:
    """Keys that are spoken of by name, in the order of the document."""
    found: dict[str, None] = {}
    for layer in layers:
        found.update(dict.fromkeys(layer.properties))
    for clause in branch.clauses:
        found.update((key, None) for key, _ in sorted(clause))
    for somewhere in branch.somewhere:
        if somewhere.layer is not None:
            found.update(dict.fromkeys(somewhere.layer.properties))
    if branch.names:
        found.update(dict.fromkeys(finite(names, LISTED) or ()))
    return list(found)


def _classes(
    branch: ObjectBranch, layers: list[Layer], names: Lang, named: list[str]
) -> tuple[list[KeyClass], list[frozenset[Lang]]]:
    """Classes of the other keys, and for each the patterns that its keys match."""
    if branch.names and finite(names, LISTED) is not None:
        return [], []
    patterns: dict[Lang, None] = {}
    for layer in layers:
        patterns.update((pattern, None) for pattern, _ in layer.patterns)
    for somewhere in branch.somewhere:
        if somewhere.among is not None:
            patterns[somewhere.among] = None
        if somewhere.layer is not None:
            patterns.update((pattern, None) for pattern, _ in somewhere.layer.patterns)
    patterns.pop(ANY, None)
    if len(patterns) > PATTERNS:
        raise ConstraintTooComplex(f"an object with more than {PATTERNS} different key patterns")
    others = negate(literals(named))
    classes: list[KeyClass] = []
    makers: list[frozenset[Lang]] = []
    for choice in product((True, False), repeat=len(patterns)):
        matched = frozenset(pattern for pattern, yes in zip(patterns, choice, strict=True) if yes)
        value = _class_value(layers, matched)
        conjunction = branch.context.canonical(value)
        if not branch.context.possible(conjunction):
            continue
        parts = [pattern if yes else negate(pattern) for pattern, yes in zip(patterns, choice, strict=True)]
        free = both((*parts, names))
        lang = both((free, others))
        if free != ANY and surely_empty(lang, EMPTY_STATES):
            continue
        classes.append(KeyClass(lang, conjunction))
        makers.append(matched | {ANY})
    return classes, makers


def _class_value(layers: Iterable[Layer], matched: frozenset[Lang]) -> list[Literal]:
    found: list[Literal] = []
    for layer in layers:
        own = [lit for pattern, lit in layer.patterns if pattern in matched or pattern == ANY]
        found += [lit for lit in (own if own else [layer.additional]) if lit is not None]
    return found


def _flag(
    branch: ObjectBranch,
    somewhere: Somewhere,
    keys: dict[str, Conjunction],
    classes: list[KeyClass],
    makers: list[frozenset[Lang]],
) -> Flag:
    context = branch.context
    flag = Flag()

    def extended(value: Conjunction) -> Conjunction | None:
        more = value if somewhere.lit is None else context.canonical((*value, somewhere.lit))
        return more if context.possible(more) else None

    for key, value in keys.items():
        if somewhere.layer is not None:
            applies = not somewhere.layer.matched(key)
        else:
            applies = somewhere.among is not None and contains(somewhere.among, key)
        more = extended(value) if applies else None
        if more is not None:
            flag.keys[key] = more
    for index, item in enumerate(classes):
        if somewhere.layer is not None:
            applies = not any(pattern in makers[index] for pattern, _ in somewhere.layer.patterns)
        else:
            applies = somewhere.among in makers[index]
        more = extended(item.value) if applies else None
        if more is not None:
            flag.classes[index] = more
    return flag


__all__ = ["Flag", "KeyClass", "ObjectShape", "object_shape", "present"]
