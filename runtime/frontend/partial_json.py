"""Reading JSON that may end anywhere: what is there, and where each value stands."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TypeAlias

Path: TypeAlias = "tuple[str | int, ...]"

_SPACE = re.compile(r"[ \t\n\r]*")
_ATOM = re.compile(r"[-+0-9.eE]+|[a-z]+")
_STRING = re.compile(r'"(?:[^"\\]|\\(?:u[0-9a-fA-F]{4}|[^u]))*')
_MISSING = object()


@dataclass(frozen=True)
class Span:
    """Where the text of a value stands: characters [start, end)."""

    path: Path
    start: int
    end: int


@dataclass(frozen=True)
class Partial:
    """``value``: what can be read so far: a string may be cut; a number or word inside an object or array that may go
    on is left out; None where there is nothing. ``leaves``: spans of the values that are neither objects nor arrays
    with content, in order. ``cut``: path of the innermost value that the text ends in; None where it is complete.
    ``items``: paths of the items of arrays that are whole, with their values, in the order in which they end."""

    value: object
    leaves: tuple[Span, ...]
    cut: Path | None
    items: tuple[tuple[Path, object], ...] = ()


def read(text: str) -> Partial:
    """What ``text`` holds, the beginning of a JSON text. Raises ValueError where it is none."""
    reader = _Reader(text)
    value = reader.value(())
    if reader.cut is None:
        reader.space()
        if reader.at != len(text):
            raise ValueError(f"there is more after the value, from character {reader.at}")
    return Partial(None if value is _MISSING else value, tuple(reader.leaves), reader.cut, tuple(reader.whole))


def pointer(path: Path) -> str:
    """As a JSON pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


@dataclass
class _Reader:
    text: str
    at: int = 0
    cut: Path | None = None
    leaves: list[Span] = field(default_factory=list)
    whole: list[tuple[Path, object]] = field(default_factory=list)

    def space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def peek(self) -> str:
        self.space()
        return self.text[self.at : self.at + 1]

    def ends(self, path: Path) -> bool:
        """The text ends here, inside ``path``."""
        if self.cut is None and self.peek() == "":
            self.cut = path
        return self.cut is not None

    def expect(self, character: str) -> None:
        if self.peek() != character:
            raise ValueError(f"character {self.at} is {self.peek()!r}, not {character!r}")
        self.at += 1

    def value(self, path: Path) -> object:
        if self.ends(path):
            return _MISSING
        start, kind = self.at, self.text[self.at]
        if kind == "{":
            return self.members(path)
        if kind == "[":
            return self.items(path)
        found = self.string(path) if kind == '"' else self.atom(path)
        self.leaves.append(Span(path, start, self.at))
        return found

    def members(self, path: Path) -> dict[str, object]:
        start, found = self.at, dict[str, object]()
        self.at += 1
        while not self.ends(path):
            if self.peek() == "}":
                self.at += 1
                break
            if found:
                self.expect(",")
                if self.ends(path):
                    break
            if self.peek() != '"':
                raise ValueError(f"character {self.at} is {self.peek()!r}: a property's name must stand there")
            name = self.string(path)
            if self.ends(path):
                break
            self.expect(":")
            value = self.value((*path, str(name)))
            if value is not _MISSING:
                found[str(name)] = value
        if not found and self.cut is None:
            self.leaves.append(Span(path, start, self.at))
        return found

    def items(self, path: Path) -> list[object]:
        start, found = self.at, list[object]()
        self.at += 1
        while not self.ends(path):
            if self.peek() == "]":
                self.at += 1
                break
            if found:
                self.expect(",")
                if self.ends(path):
                    break
            item = (*path, len(found))
            value = self.value(item)
            if value is not _MISSING:
                found.append(value)
                if self.cut is None:
                    self.whole.append((item, value))
        if not found and self.cut is None:
            self.leaves.append(Span(path, start, self.at))
        return found

    def string(self, path: Path) -> str:
        found = _STRING.match(self.text, self.at)
        assert found is not None  # the caller saw the quotation mark
        whole = found.group()
        self.at = found.end()
        if self.text[self.at : self.at + 1] == '"':
            self.at += 1
        else:  # cut, perhaps inside an escape or a surrogate pair
            self.at = len(self.text)
            self.cut = path
            whole = re.sub(r"\\u[dD][89abAB][0-9a-fA-F]{2}$", "", whole)
        value = json.loads(whole + '"', strict=False)
        assert isinstance(value, str)
        return value

    def atom(self, path: Path) -> object:
        found = _ATOM.match(self.text, self.at)
        if found is None:
            raise ValueError(f"character {self.at} is {self.text[self.at]!r}: no value begins with it")
        self.at = found.end()
        if self.at == len(self.text) and path:  # it may go on
            self.cut = path
            return _MISSING
        try:
            value: object = json.loads(found.group())
            return value
        except ValueError:
            if self.at == len(self.text):
                self.cut = path
                return _MISSING
            raise ValueError(f"{found.group()!r} is no value") from None
