"""Values written as a grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ramet.runtime.constrain.grammar import Grammar
from ramet.runtime.constrain.numbers import NUMBER
from ramet.runtime.constrain.schema.array_shape import ArrayShape
from ramet.runtime.constrain.schema.context import Conjunction
from ramet.runtime.constrain.schema.emit_array import write_array
from ramet.runtime.constrain.schema.emit_object import Order, write_object
from ramet.runtime.constrain.schema.object_shape import ObjectShape
from ramet.runtime.constrain.schema.values import Value, Values
from ramet.runtime.constrain.strings.lang import ANY, NOTHING
from ramet.runtime.protocol.errors import InvalidConstraint


class Emitter:
    """``symbol`` names what stands for a value in a rule; bodies of arrays and objects are written afterwards, so that
    values may hold themselves."""

    def __init__(self, values: Values, grammar: Grammar, order: Order) -> None:
        self.values = values
        self.grammar = grammar
        self.order: Order = order
        self.unique: list[ArrayShape] = []
        """Arrays whose items must differ, which the grammar does not enforce."""
        self._symbols: dict[Conjunction, str] = {}
        self._arrays: dict[object, str] = {}
        self._waiting: list[tuple[str, ArrayShape | ObjectShape]] = []

    def run(self) -> str:
        """Write everything; the symbol of the root."""
        if self.values.root not in self.values.productive:
            raise InvalidConstraint("no JSON value satisfies the schema")
        start = self.symbol(self.values.root)
        while self._waiting:
            name, shape = self._waiting.pop()
            if isinstance(shape, ArrayShape):
                write_array(self, name, shape)
            else:
                write_object(self, name, shape)
        return start

    def alive(self, value: Conjunction) -> bool:
        """Whether the value has an instance at all."""
        return value in self.values.productive

    def symbol(self, conjunction: Conjunction) -> str:
        found = self._symbols.get(conjunction)
        if found is None:
            found = self._symbols[conjunction] = self._write(self.values.table[conjunction])
        return found

    def _write(self, value: Value) -> str:
        grammar = self.grammar
        if value.anything:
            return grammar.anything()
        every_scalar = value.null and len(value.booleans) == 2 and value.strings == ANY and value.numbers == NUMBER
        options = [grammar.scalar()] if every_scalar else list(self._scalars(value))
        for shape in value.objects:
            if shape.productive(self.values.productive):
                options.append(self._later(shape))
        for array in value.arrays:
            if array.productive(self.values.productive):
                options.append(self._later(array))
        if value.null and not every_scalar:
            options.append('"null"')
        return options[0] if len(options) == 1 else grammar.rule(" | ".join(options), "v")

    def _scalars(self, value: Value) -> Iterator[str]:
        """All but null, which stands at the end."""
        grammar = self.grammar
        for truth in value.booleans:
            yield grammar.literal(json.dumps(truth))
        if value.strings != NOTHING:
            yield grammar.string(value.strings)
        if value.numbers != NOTHING:
            yield grammar.number(value.numbers)
        if value.engine_number:
            yield self._engine_number(value.engine_number)

    def _later(self, shape: ArrayShape | ObjectShape) -> str:
        if isinstance(shape, ObjectShape):
            name = self.grammar.fresh("o")
        else:
            found = self._arrays.get(shape.identity)
            if found is not None:
                return found
            name = self._arrays[shape.identity] = self.grammar.fresh("a")
        self._waiting.append((name, shape))
        return name

    def _engine_number(self, schema: str) -> str:
        return self.grammar.rule(f"%json {schema}", "n")
