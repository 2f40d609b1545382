"""Where in a text the items of an array must differ, as far as the grammar leaves that to the matcher."""

from __future__ import annotations

from collections.abc import Iterable

from ramet.runtime.constrain.scanner import Watched, WatchPlan
from ramet.runtime.constrain.schema.array_shape import ArrayShape
from ramet.runtime.constrain.schema.context import Conjunction
from ramet.runtime.constrain.schema.values import Value, Values, children
from ramet.runtime.constrain.strings.lang import contains
from ramet.runtime.constrain.strings.wire import encode


def watch(values: Values, unique: list[ArrayShape]) -> WatchPlan | None:
    """None if there is nothing to watch. Named keys of alternatives that differ are watched as if all had them."""
    if not unique:
        return None
    number = {conjunction: index for index, conjunction in enumerate(values.table)}
    marked = {id(shape) for shape in unique}
    watched = _closure(values, marked)
    table = {number[item]: _watched(values.table[item], number, marked, watched) for item in watched}
    return WatchPlan(number[values.root], table)


def _is_unique(value: Value, marked: set[int]) -> bool:
    return any(id(shape) in marked for shape in value.arrays)


def _closure(values: Values, marked: set[int]) -> set[Conjunction]:
    """Values that hold a watched array, at whatever depth."""
    parents: dict[Conjunction, list[Conjunction]] = {}
    for conjunction, value in values.table.items():
        for child in children(value):
            parents.setdefault(child, []).append(conjunction)
    queue = [conjunction for conjunction, value in values.table.items() if _is_unique(value, marked)]
    found = set(queue)
    while queue:
        for parent in parents.get(queue.pop(), ()):
            if parent not in found:
                found.add(parent)
                queue.append(parent)
    return found


def _watched(value: Value, number: dict[Conjunction, int], marked: set[int], watched: set[Conjunction]) -> Watched:
    def numbers(conjunctions: Iterable[Conjunction]) -> list[int]:
        return sorted({number[item] for item in conjunctions if item in watched})

    named = dict.fromkeys(key for shape in value.objects for key in shape.ways)
    classes = [
        (item.lang, way.value)
        for shape in value.objects
        for item, ways in zip(shape.classes, shape.class_ways, strict=True)
        for way in ways
        if way.value in watched
    ]
    keys = {
        key: numbers(
            [
                *(way.value for shape in value.objects for way in shape.ways.get(key, ())),
                *(child for lang, child in classes if contains(lang, key)),
            ]
        )
        for key in named
    }
    size = max((len(shape.prefix) for shape in value.arrays), default=0)
    items = [
        numbers(
            move.value
            for shape in value.arrays
            for move in (shape.prefix[index] if index < len(shape.prefix) else shape.rest)
        )
        for index in range(size + 1)
    ]
    return Watched(
        _is_unique(value, marked),
        {key: found for key, found in keys.items() if found or classes},
        [(encode(lang), [number[child]]) for lang, child in classes],
        items[:-1],
        items[-1],
    )
