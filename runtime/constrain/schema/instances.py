"""Instances of lowered schemas: examples for reports, random ones for tests."""

from __future__ import annotations

import json
from collections import deque
from random import Random
from typing import TypeVar

from ramet.runtime.constrain.numbers import DECIMAL
from ramet.runtime.constrain.schema.array_shape import ArrayShape, Move
from ramet.runtime.constrain.schema.context import Conjunction
from ramet.runtime.constrain.schema.graph import Json
from ramet.runtime.constrain.schema.object_shape import ObjectShape
from ramet.runtime.constrain.schema.values import Value, Values
from ramet.runtime.constrain.strings.lang import NOTHING, Lang, both, derive, nullable
from ramet.runtime.constrain.strings.walk import representatives

T = TypeVar("T", ArrayShape, ObjectShape)

STATES = 3000
DEPTH = 6


class NoInstance(Exception):
    """None was found within the bounds; there may be some."""


class Instances:
    """Draws values of a lowered schema. Without ``rng``: all named keys, shortest texts, the first alternative."""

    def __init__(self, values: Values, rng: Random | None = None) -> None:
        self.values = values
        self._rng = rng

    def draw(self) -> Json:
        """Raises NoInstance. Keys that depend on each other or are limited in number are drawn without regard to it."""
        return self._draw(self.values.root, 0)

    def _draw(self, conjunction: Conjunction, depth: int) -> Json:
        if conjunction not in self.values.productive or depth > 4 * DEPTH:
            raise NoInstance
        value = self.values.table[conjunction]
        if value.anything:
            return self._anything()
        kinds = self._kinds(value)
        if depth > DEPTH:
            kinds = [kind for kind in kinds if kind not in ("array", "object")] or kinds
        if not kinds:
            raise NoInstance
        kind = self._rng.choice(kinds) if self._rng else kinds[0]
        if kind == "null":
            return None
        if kind == "boolean":
            return value.booleans[0] if self._rng is None else self._rng.choice(value.booleans)
        if kind == "string":
            return sample(value.strings, self._rng)
        if kind == "number":
            return json.loads(sample(both((value.numbers, DECIMAL)), self._rng))
        if kind == "array":
            return self._array(self._pick(value.arrays), depth)
        return self._object(self._pick(value.objects), depth)

    def _kinds(self, value: Value) -> list[str]:
        present = {
            "object": value.objects,
            "array": value.arrays,
            "string": value.strings != NOTHING,
            "number": value.numbers != NOTHING,
            "boolean": value.booleans,
            "null": value.null,
        }
        return [kind for kind, there in present.items() if there]

    def _pick(self, shapes: list[T]) -> T:
        usable = [shape for shape in shapes if shape.productive(self.values.productive)]
        if not usable:
            raise NoInstance
        return self._rng.choice(usable) if self._rng else usable[0]

    def _array(self, shape: ArrayShape, depth: int) -> Json:
        low, high = shape.low, shape.high
        size = low if self._rng else max(low, 1 if depth < DEPTH else 0)
        if self._rng and depth < DEPTH:
            size += self._rng.randrange(3)
        size = size if high is None else min(size, high)
        items: list[Json] = []
        for index in range(size):
            moves = shape.prefix[index] if index < len(shape.prefix) else shape.rest
            usable = [move for move in moves if move.value in self.values.productive]
            if not usable and index >= low:
                break
            if not usable:
                raise NoInstance
            move: Move = self._rng.choice(usable) if self._rng else usable[0]
            items.append(self._draw(move.value, depth + 1))
        return items

    def _object(self, shape: ObjectShape, depth: int) -> Json:
        found: dict[str, Json] = {}
        for key, value in shape.keys.items():
            required = key in shape.required
            if not required and (value not in self.values.productive or depth >= DEPTH):
                continue
            if not required and self._rng and self._rng.random() < 0.5:
                continue
            try:
                found[key] = self._draw(value, depth + 1)
            except NoInstance:
                if required:
                    raise
        for item in shape.classes:
            wanted = self._rng.randrange(2) if self._rng else 0
            for _ in range(max(wanted, shape.low - len(found))):
                if item.value in self.values.productive and depth < DEPTH:
                    found.setdefault(sample(item.lang, self._rng), self._draw(item.value, depth + 1))
        return found

    def _anything(self) -> Json:
        if self._rng is None:
            return "x"
        return self._rng.choice(["x", 0, 1.5, True, None, [], {}, [1, "a"], {"a": {"b": 1}}, '\u00e9"\\\n'])


def sample(lang: Lang, rng: Random | None = None) -> str:
    """A shortest string of the language, or one found by a random walk. Raises NoInstance."""
    if rng is not None:
        walked = _walk(lang, rng)
        if walked is not None:
            return walked
    seen = {lang}
    queue: deque[tuple[Lang, str]] = deque([(lang, "")])
    while queue and len(seen) < STATES:
        state, text = queue.popleft()
        if nullable(state):
            return text
        for point in _points(state):
            target = derive(state, point)
            if target != NOTHING and target not in seen:
                seen.add(target)
                queue.append((target, text + chr(point)))
    raise NoInstance


def _walk(lang: Lang, rng: Random) -> str | None:
    state, text = lang, ""
    for _ in range(40):
        if nullable(state) and rng.random() < 0.3:
            return text
        points = [point for point in _points(state) if derive(state, point) != NOTHING]
        if not points:
            return text if nullable(state) else None
        point = rng.choice(points)
        state, text = derive(state, point), text + chr(point)
    return text if nullable(state) else None


def _points(lang: Lang) -> list[int]:
    """One character per way to go on; a letter or digit where one stands for the same."""
    points = representatives(lang) or []
    readable = [point for point in (*range(0x61, 0x7B), *range(0x30, 0x3A), 0x20, 0x2F) if points]
    found: dict[Lang, int] = {}
    for point in (*readable, *points):
        found.setdefault(derive(lang, point), point)
    return list(found.values())
