"""An automaton over bytes that accepts every text that a constraint of the extraction accepts (and a few more, see
``symbols``), built as far as it is walked.

A state is a set of stacks of symbols, the one to be written next on top. Stacks share their lower parts::

    {"a": "x            Text(...) | Literal(b'"') | Members(object, 1, 1)
    what is written      what may follow
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ramet.extraction.shortest.symbols import (
    Copy,
    Inside,
    Item,
    Items,
    Literal,
    Members,
    Row,
    Step,
    Symbol,
    Text,
    ValueOf,
    array_rows,
    item_rows,
    object_rows,
    text_steps,
    unbounded,
)
from ramet.runtime.constrain.kinds import decode, options_of
from ramet.runtime.constrain.numbers import NUMBER
from ramet.runtime.constrain.schema.array_shape import ArrayShape, Move
from ramet.runtime.constrain.schema.context import Context
from ramet.runtime.constrain.schema.graph import Graph
from ramet.runtime.constrain.schema.object_shape import KeyClass, ObjectShape, Way
from ramet.runtime.constrain.schema.values import Value, Values
from ramet.runtime.constrain.strings.lang import ANY, NOTHING, Texts, nullable
from ramet.runtime.constrain.substrings import Substring
from ramet.runtime.protocol.messages import ConstraintSpec

_EMPTY = 0
"""The stack with nothing on it: the text is complete."""


class Machine:
    """States by number; 0 is the first. spec: JSON Schema, keys in the given order, compact text."""

    def __init__(self, spec: ConstraintSpec) -> None:
        options = options_of(spec)
        assert spec.kind == "json_schema" and spec.whitespace == "compact" and options.order == "given"
        self._values = Values(Context(Graph(decode(spec.text), options.documents)))
        self._copies = {constant: _Copied(substring) for constant, substring in options.substrings.items()}
        self._objects: list[tuple[ObjectShape, list[str], list[bytes]]] = []
        self._arrays: list[ArrayShape] = []
        self._rows: dict[Symbol, tuple[Row, ...]] = {}
        self._steps: dict[Symbol, tuple[NDArray[np.int32], list[Row]]] = {}
        self._cells: list[tuple[Symbol, int]] = [(Literal(b""), _EMPTY)]
        self._stack_ids: dict[tuple[Symbol, int], int] = {}
        self._states: list[frozenset[int]] = []
        self._numbers: dict[frozenset[int], int] = {}
        self._edges = np.full((64, 256), -1, np.int32)
        self._made = np.zeros(64, np.bool_)
        self.start = self._number(self._closed([self._pushed((ValueOf(self._values.root),), _EMPTY)]))

    @property
    def size(self) -> int:
        """States so far."""
        return len(self._states)

    def final(self, state: int) -> bool:
        return _EMPTY in self._states[state]

    def follow(self, states: NDArray[np.int32], read: NDArray[np.int32]) -> NDArray[np.int32]:
        """The state behind each state and byte; -1 where there is none."""
        for state in np.unique(states[~self._made[states]]).tolist():
            edges = self._edges_of(self._states[state])
            self._edges[state] = edges
            self._made[state] = True
        found: NDArray[np.int32] = self._edges[states, read]
        return found

    def after(self, state: int, text: bytes) -> int:
        """The state behind ``text``; -1 where there is none."""
        for byte in text:
            if state < 0:
                return -1
            state = int(self.follow(np.array([state], np.int32), np.array([byte], np.int32))[0])
        return state

    @property
    def compares_items(self) -> bool:
        """Whether what may follow depends on what is copied: items of an array have to differ."""
        return any(array.unique is not None for value in self._values.table.values() for array in value.arrays)

    def settled(self, state: int) -> int:
        """The state in which a copied string that may end goes on with its end."""
        stacks = self._states[state]
        copying = [stack for stack in stacks if isinstance(self._cells[stack][0], Copy)]
        if not copying or not all(self._cells[stack][1] in stacks for stack in copying):
            return state
        return self._number(stacks.difference(copying))

    def behind_copy(self, state: int) -> int | None:
        """Of a state within a copied string: the one in which it has ended."""
        stacks = self._states[state]
        if len(stacks) != 1:
            return None
        symbol, rest = self._cells[next(iter(stacks))]
        return self._number(frozenset([rest])) if isinstance(symbol, Copy) and symbol.content else None

    # ------------------------------------------------------------ states

    def _number(self, stacks: frozenset[int]) -> int:
        found = self._numbers.get(stacks)
        if found is None:
            found = self._numbers[stacks] = len(self._states)
            self._states.append(stacks)
            if found >= len(self._made):
                self._edges = np.concatenate([self._edges, np.full_like(self._edges, -1)])
                self._made = np.concatenate([self._made, np.zeros_like(self._made)])
        return found

    def _edges_of(self, stacks: frozenset[int]) -> NDArray[np.int32]:
        parts = []
        for stack in sorted(stacks - {_EMPTY}):
            symbol, rest = self._cells[stack]
            taken, rows = self._first_bytes(symbol)
            parts.append((taken, [self._pushed(row, rest) for row in rows]))
        if not parts:
            return np.full(256, -1, np.int32)
        if len(parts) == 1:
            [(taken, after)] = parts
            return np.array([*(self._number(self._closed([stack])) for stack in after), -1], np.int32)[taken]
        columns, place = np.unique(np.stack([taken for taken, _ in parts]), axis=1, return_inverse=True)
        targets = []
        for column in columns.T.tolist():
            after = [rows[choice] for (_, rows), choice in zip(parts, column, strict=True) if choice >= 0]
            targets.append(self._number(self._closed(after)) if after else -1)
        return np.array(targets, np.int32)[place.reshape(-1)]

    def _closed(self, stacks: Iterable[int]) -> frozenset[int]:
        """The stacks whose top is a step of bytes that these amount to."""
        found: set[int] = set()
        waiting, seen = list(stacks), set[int]()
        while waiting:
            stack = waiting.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if stack == _EMPTY:
                found.add(stack)
                continue
            symbol, rest = self._cells[stack]
            if isinstance(symbol, (ValueOf, Members, Items, Item)):
                waiting += [self._pushed(row, rest) for row in self._alternatives(symbol)]
                continue
            if not (isinstance(symbol, Text) and symbol.lang == NOTHING):
                found.add(stack)
            if self._may_end(symbol):
                waiting.append(rest)
        return frozenset(found)

    def _pushed(self, row: Row, stack: int) -> int:
        for symbol in reversed(row):
            key = (symbol, stack)
            found = self._stack_ids.get(key)
            if found is None:
                found = self._stack_ids[key] = len(self._cells)
                self._cells.append(key)
            stack = found
        return stack

    # ------------------------------------------------------------ symbols

    def _may_end(self, symbol: Symbol) -> bool:
        if isinstance(symbol, Text):
            return nullable(symbol.lang)
        return isinstance(symbol, Copy) and self._copies[symbol.constant].may_end(symbol.content)

    def _first_bytes(self, symbol: Symbol) -> tuple[NDArray[np.int32], list[Row]]:
        """[256] number of the row that a byte leads to (-1: none), and the rows."""
        found = self._steps.get(symbol)
        if found is None:
            taken, rows = np.full(256, -1, np.int32), dict[Row, int]()
            for first, last, row in self._steps_of(symbol):
                taken[first : last + 1] = rows.setdefault(row, len(rows))
            found = self._steps[symbol] = (taken, list(rows))
        return found

    def _steps_of(self, symbol: Symbol) -> Iterator[Step]:
        if isinstance(symbol, Literal):
            rest = symbol.data[1:]
            yield symbol.data[0], symbol.data[0], (Literal(rest),) if rest else ()
        elif isinstance(symbol, (Text, Inside)):
            yield from text_steps(symbol)
        elif isinstance(symbol, Copy):
            for byte in self._copies[symbol.constant].following(symbol.content):
                yield byte, byte, (Copy(symbol.constant, symbol.content + bytes([byte])),)

    def _alternatives(self, symbol: ValueOf | Members | Items | Item) -> tuple[Row, ...]:
        found = self._rows.get(symbol)
        if found is None:
            found = self._rows[symbol] = tuple(self._write(symbol))
        return found

    def _write(self, symbol: ValueOf | Members | Items | Item) -> Iterator[Row]:
        if isinstance(symbol, ValueOf):
            yield from self._value(_ANYTHING if not symbol.conjunction else self._values.table[symbol.conjunction])
        elif isinstance(symbol, Members):
            shape, keys, heads = self._objects[symbol.shape]
            yield from object_rows(shape, symbol, keys, heads)
        elif isinstance(symbol, Items):
            yield from array_rows(self._arrays[symbol.shape], symbol)
        else:
            yield from item_rows(self._arrays[symbol.shape], symbol)

    def _value(self, value: Value) -> Iterator[Row]:
        for truth in value.booleans:
            yield (Literal(json.dumps(truth).encode()),)
        if value.null:
            yield (Literal(b"null"),)
        if value.strings != NOTHING:
            yield Literal(b'"'), self._string(value), Literal(b'"')
        if value.numbers != NOTHING or value.engine_number:
            yield (Text(NUMBER if value.engine_number else unbounded(value.numbers), False),)
        for shape in value.objects:
            keys = [key for key, member in shape.keys.items() if not member or member in self._values.productive]
            heads = [f"{json.dumps(key, ensure_ascii=False)}:".encode("utf-8", "surrogatepass") for key in keys]
            self._objects.append((shape, keys, heads))
            yield Literal(b"{"), Members(len(self._objects) - 1, 0, 0)
        for array in value.arrays:
            self._arrays.append(array)
            yield Literal(b"["), Items(len(self._arrays) - 1, 0)

    def _string(self, value: Value) -> Copy | Text:
        if isinstance(value.strings, Texts) and len(value.strings.texts) == 1:
            [constant] = value.strings.texts
            if constant in self._copies:
                return Copy(constant)
        return Text(unbounded(value.strings), True)


_ANYTHING = Value(
    null=True,
    booleans=(True, False),
    strings=ANY,
    numbers=NUMBER,
    arrays=[ArrayShape([], [Move(())], 0, None, [], None)],
    objects=[ObjectShape({}, frozenset(), [KeyClass(ANY, ())], [], 0, None, [], {}, [[Way(())]])],
)


class _Copied:
    """The parts of a text as JSON spells it, by how they begin."""

    def __init__(self, substring: Substring) -> None:
        self._limits = max(1, substring.shortest), substring.longest
        pieces = [piece.encode("utf-8", "surrogatepass") for piece in substring.pieces()]
        self._text = np.frombuffer(b"".join(pieces), np.uint8)
        bounds = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces], dtype=np.int64)])
        self._bounds = np.zeros(len(self._text) + 1, np.bool_)
        self._bounds[bounds] = True
        self._places: dict[bytes, NDArray[np.int64]] = {b"": bounds[:-1]}

    def _at(self, content: bytes) -> NDArray[np.int64]:
        """Where the text goes on behind each occurrence of ``content`` that begins a part."""
        found = self._places.get(content)
        if found is None:
            before = self._at(content[:-1])
            before = before[before < len(self._text)]
            found = self._places[content] = before[self._text[before] == content[-1]] + 1
        return found

    def following(self, content: bytes) -> Sequence[int]:
        """Bytes that may come next."""
        places = self._at(content)
        written = _decoded(content)
        if self._limits[1] and len(written) >= self._limits[1]:
            return ()
        found: list[int] = np.unique(self._text[places[places < len(self._text)]]).tolist()
        return [byte for byte in found if content or byte != 0x20]

    def may_end(self, content: bytes) -> bool:
        shortest, longest = self._limits
        written = _decoded(content)
        if not written or len(written) < shortest or (longest and len(written) > longest):
            return False
        if any(character <= " " or character == "\x7f" for character in (written[0], written[-1])):
            return False
        return bool(self._bounds[self._at(content)].any())


def _decoded(content: bytes) -> str:
    """The characters that are spelled; none where the last one is not whole."""
    try:
        found = json.loads(b'"%b"' % content)
    except ValueError:
        return ""
    assert isinstance(found, str)
    return found
