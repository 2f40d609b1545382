"""Follows JSON text byte by byte, far enough to know the items of arrays that must differ.

The text is known to be a beginning of valid JSON: the engine sees to that. States are immutable, so that a matcher can
go back and forth between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from ramet.runtime.constrain.equality import key_of
from ramet.runtime.constrain.strings.lang import contains
from ramet.runtime.constrain.strings.wire import LangData, decode

VALUE, STRING, PLAIN, AFTER, KEY_START, KEY, COLON, NO_KEY = range(8)
"""Where in the text: before a value, in a string, in a number or word, behind a value, before a key, in a key, before a
colon, before the first key."""

WORDS: dict[bytes, object] = {b"t": key_of(True), b"f": key_of(False), b"n": key_of(None)}
"""Values that their first letter gives away."""

BLANKS = b" \t\n\r"
ENDS = b",]} \t\n\r"
"""Bytes that end a number or word."""


@dataclass(frozen=True)
class Place:
    """What a schema says about one place, or several at once: ``unique`` items, and the places further down."""

    unique: bool
    key: Callable[[str], Place | None]
    item: Callable[[int], Place | None]


@dataclass(frozen=True, slots=True)
class Frame:
    """An open array or object. ``seen``: items so far, None where they may repeat."""

    parent: Frame | None
    array: bool
    place: Place | None
    index: int = 0
    seen: frozenset[object] | None = None
    item_start: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """``start``: offset of the string, number, word or key that is open. ``escaped``: the last byte was a backslash."""

    mode: int
    frame: Frame | None
    place: Place | None
    start: int = 0
    escaped: bool = False

    @property
    def watched(self) -> Frame | None:
        """The outermost open array whose items must differ."""
        found, frame = None, self.frame
        while frame is not None:
            if frame.seen is not None:
                found = frame
            frame = frame.parent
        return found


def start(place: Place) -> State:
    return State(VALUE, None, place)


def feed(state: State, text: bytes, data: bytes) -> State | None:
    """The state after ``data`` behind ``text``; None if it completes an item that is there already."""
    whole = text + data
    for at in range(len(text), len(whole)):
        following = _step(state, whole, at)
        if following is None:
            return None
        state = following
    return None if _bound_to_repeat(state, whole) else state


def _bound_to_repeat(state: State, text: bytes) -> bool:
    """A word has begun that is an item already: it can only go on to be that word."""
    frame = state.frame
    if state.mode != PLAIN or frame is None or frame.seen is None:
        return False
    letter = text[state.start : state.start + 1]
    return letter in WORDS and WORDS[letter] in frame.seen


def _step(state: State, text: bytes, at: int) -> State | None:
    """The state after the byte at ``at``."""
    mode, byte = state.mode, text[at]
    if mode in (STRING, KEY):
        if state.escaped:
            return replace(state, escaped=False)
        if byte == 0x5C:
            return replace(state, escaped=True)
        if byte != 0x22:
            return state
        if mode == KEY:
            return _keyed(state, json.loads(text[state.start : at + 1]))
        return _complete(state, text, at + 1)
    if mode == PLAIN:
        if byte not in ENDS:
            return state
        done = _complete(state, text, at)
        return None if done is None else _step(done, text, at)
    if byte in BLANKS:
        return state
    if mode == VALUE:
        return _open(state, text, at)
    if mode in (KEY_START, NO_KEY):
        if byte == 0x7D:
            return _close(state, text, at)
        return replace(state, mode=KEY, start=at)
    if mode == COLON:
        return replace(state, mode=VALUE)
    if byte == 0x2C:
        return _next(state)
    return _close(state, text, at)


def _open(state: State, text: bytes, at: int) -> State | None:
    """The first byte of a value, or the end of an empty array."""
    frame, place, byte = state.frame, state.place, text[at]
    if byte == 0x5D:
        return _close(state, text, at)
    if frame is not None and frame.seen is not None:
        frame = replace(frame, item_start=at)
    if byte == 0x22:
        return State(STRING, frame, place, at)
    if byte == 0x7B:
        return State(NO_KEY, Frame(frame, False, place), None)
    if byte == 0x5B:
        seen: frozenset[object] | None = frozenset() if place is not None and place.unique else None
        child = None if place is None else place.item(0)
        return State(VALUE, Frame(frame, True, place, 0, seen, at), child)
    return State(PLAIN, frame, place, at)


def _keyed(state: State, key: str) -> State:
    frame = state.frame
    assert frame is not None
    child = None if frame.place is None else frame.place.key(key)
    return State(COLON, frame, child)


def _next(state: State) -> State:
    """Behind a comma."""
    frame = state.frame
    assert frame is not None
    if not frame.array:
        return State(KEY_START, frame, None)
    frame = replace(frame, index=frame.index + 1)
    return State(VALUE, frame, None if frame.place is None else frame.place.item(frame.index))


def _close(state: State, text: bytes, at: int) -> State | None:
    frame = state.frame
    assert frame is not None
    return _complete(replace(state, frame=frame.parent), text, at + 1)


def _complete(state: State, text: bytes, end: int) -> State | None:
    """A value ends in front of ``end``."""
    frame = state.frame
    if frame is not None and frame.seen is not None:
        item = key_of(json.loads(text[frame.item_start : end]))
        if item in frame.seen:
            return None
        frame = replace(frame, seen=frame.seen | {item})
    return State(AFTER, frame, None)


class Watched(msgspec.Struct, frozen=True):
    """What a schema says about one value, as far as it must be watched. Numbers are indices of other values.

    ``keys`` and ``classes`` (languages of keys, see ``strings.wire``): the values of members; ``prefix`` and ``rest``:
    those of items.
    """

    unique: bool
    keys: dict[str, list[int]]
    classes: list[tuple[LangData, list[int]]]
    prefix: list[list[int]]
    rest: list[int]


class WatchPlan(msgspec.Struct, frozen=True):
    """All values to be watched, by number; ``root``: that of the whole text."""

    root: int
    values: dict[int, Watched]


class PlaceTable:
    """Places of sets of values, made on first use."""

    def __init__(self, plan: WatchPlan) -> None:
        self._values = plan.values
        self._classes = {
            number: [(decode(lang), children) for lang, children in value.classes]
            for number, value in plan.values.items()
        }
        self._places: dict[frozenset[int], Place | None] = {}

    def place(self, values: frozenset[int]) -> Place | None:
        """None if nothing under these values must be watched."""
        kept = frozenset(value for value in values if value in self._values)
        if not kept:
            return None
        found = self._places.get(kept)
        if found is None:
            found = self._places[kept] = Place(
                any(self._values[value].unique for value in kept),
                lambda name: self.place(frozenset(child for value in kept for child in self._key(value, name))),
                lambda index: self.place(frozenset(child for value in kept for child in self._item(value, index))),
            )
        return found

    def _key(self, number: int, name: str) -> Sequence[int]:
        value = self._values[number]
        if name in value.keys:
            return value.keys[name]
        return [child for lang, children in self._classes[number] if contains(lang, name) for child in children]

    def _item(self, number: int, index: int) -> Sequence[int]:
        value = self._values[number]
        return value.prefix[index] if index < len(value.prefix) else value.rest


def root_of(plan: WatchPlan) -> Place | None:
    """The place of the whole text."""
    return PlaceTable(plan).place(frozenset((plan.root,)))
