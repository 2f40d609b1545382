"""Where in a text the items of an array must differ, as far as the grammar leaves that to the matcher."""

from __future__ import annotations

from collections.abc import Iterator

from ramet.runtime.constrain.scanner import Place, PlaceTable
from ramet.runtime.constrain.schema.array_shape import ArrayShape
from ramet.runtime.constrain.schema.context import Conjunction
from ramet.runtime.constrain.schema.values import Values, children
from ramet.runtime.constrain.strings.lang import contains


def watch(values: Values, unique: list[ArrayShape]) -> Place | None:
    """The place of the root; None if there is nothing to watch."""
    if not unique:
        return None
    watcher = _Watcher(values, unique)
    return PlaceTable(watcher.watched.__contains__, watcher.unique, watcher.key, watcher.item).place(
        frozenset((watcher.number[values.root],))
    )


class _Watcher:
    """Values by number."""

    def __init__(self, values: Values, unique: list[ArrayShape]) -> None:
        self.number = {conjunction: index for index, conjunction in enumerate(values.table)}
        self._values = list(values.table.values())
        self._unique = {id(shape) for shape in unique}
        self.watched = self._closure(values)

    def _closure(self, values: Values) -> set[int]:
        """Values that hold a watched array, at whatever depth."""
        parents: dict[int, list[int]] = {}
        for conjunction, value in values.table.items():
            for child in children(value):
                parents.setdefault(self.number[child], []).append(self.number[conjunction])
        queue = [index for index in range(len(self._values)) if self.unique(index)]
        found = set(queue)
        while queue:
            for parent in parents.get(queue.pop(), ()):
                if parent not in found:
                    found.add(parent)
                    queue.append(parent)
        return found

    def unique(self, index: int) -> bool:
        return any(id(shape) in self._unique for shape in self._values[index].arrays)

    def key(self, index: int, name: str) -> list[int]:
        return [self.number[child] for child in self._members(index, name)]

    def _members(self, index: int, name: str) -> Iterator[Conjunction]:
        for shape in self._values[index].objects:
            if name in shape.ways:
                yield from (way.value for way in shape.ways[name])
                continue
            for item, ways in zip(shape.classes, shape.class_ways, strict=True):
                if contains(item.lang, name):
                    yield from (way.value for way in ways)

    def item(self, index: int, position: int) -> list[int]:
        found = []
        for shape in self._values[index].arrays:
            moves = shape.prefix[position] if position < len(shape.prefix) else shape.rest
            found += [self.number[move.value] for move in moves]
        return found
