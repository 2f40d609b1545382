"""Reader of regular expressions: the common syntax of ECMA-262 and Python's ``re``.

Two dialects differ in classes only. ``ecma`` (JSON Schema): ``\\d`` and ``\\w`` are ASCII, ``\\s`` is Unicode, ``.`` is
anything but a line terminator. ``python``: a positive ``\\d``, ``\\w``, ``\\s`` is ASCII and a negated one leaves out
all that Unicode counts in, so that what a mask allows matches with and without ``re.ASCII``; ``.`` is all but ``\\n``.
"""

from __future__ import annotations

from typing import Literal

from ramet.runtime.constrain.strings.chars import (
    ALL,
    DIGIT,
    LAST,
    NEWLINES,
    NONE,
    SPACE,
    SPACE_ASCII,
    WORD,
    CharSet,
    category,
    chars,
    charset,
    unicode_property,
)
from ramet.runtime.constrain.strings.tree import (
    Ahead,
    Anchor,
    Either,
    One,
    PatternError,
    PatternUnsupported,
    Repeat,
    Run,
    Tree,
)

Dialect = Literal["ecma", "python"]

DEPTH = 100
"""Bound of nested groups."""

COUNT = 10_000
"""Bound of a repetition's numbers."""

_SIMPLE = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}


def parse(pattern: str, dialect: Dialect = "ecma") -> Tree:
    """Raises PatternError or PatternUnsupported."""
    reader = _Reader(pattern, dialect)
    tree = reader.alternatives(0)
    if reader.position < len(pattern):
        raise PatternError(f"unbalanced ')' at {reader.position}")
    return tree


class _Reader:
    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self.pattern = pattern
        self.position = 0
        self.dialect = dialect
        self.fold = False
        self.dot_all = False

    # ------------------------------------------------------------ structure

    def alternatives(self, depth: int) -> Tree:
        if depth > DEPTH:
            raise PatternUnsupported(f"groups nested deeper than {DEPTH}")
        options = [self.run(depth)]
        while self.take("|"):
            options.append(self.run(depth))
        return options[0] if len(options) == 1 else Either(tuple(options))

    def run(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while self.position < len(self.pattern) and self.peek() not in "|)":
            part = self.atom(depth)
            if part is not None:
                parts.append(self.quantified(part))
        return parts[0] if len(parts) == 1 else Run(tuple(parts))

    def quantified(self, part: Tree) -> Tree:
        while (bounds := self.bounds()) is not None:
            low, high = bounds
            if self.take("?"):
                pass  # lazy or greedy: the same language
            elif self.peek() == "+" and self.dialect == "python":
                raise PatternUnsupported("possessive quantifiers are not supported")
            part = Repeat(part, low, high)
        return part

    def bounds(self) -> tuple[int, int | None] | None:
        if self.take("*"):
            return 0, None
        if self.take("+"):
            return 1, None
        if self.take("?"):
            return 0, 1
        if self.peek() != "{":
            return None
        close = self.pattern.find("}", self.position)
        low, comma, high = self.pattern[self.position + 1 : close].partition(",")
        if close < 0 or not (low or (comma and high and self.dialect == "python")):
            return None
        if not (low.isascii() and high.isascii() and (low + high).isdigit()):
            return None
        self.position = close + 1
        first = int(low or "0")
        last = (int(high) if high else None) if comma else first
        if last is not None and first > last:
            raise PatternError(f"numbers out of order in {{{low},{high}}}")
        if max(first, last or 0) > COUNT:
            raise PatternUnsupported(f"repetition of more than {COUNT}")
        return first, last

    def atom(self, depth: int) -> Tree | None:
        char = self.next()
        if char == "(":
            return self.group(depth)
        if char == "[":
            return One(self.folded(self.bracket()))
        if char == ".":
            newlines = NEWLINES if self.dialect == "ecma" else chars("\n")
            return One(ALL if self.dot_all else ~newlines)
        if char == "^":
            return Anchor("begin")
        if char == "$":
            return Anchor("end")
        if char == "\\":
            return self.escape()
        if char in "*+?":
            raise PatternError(f"nothing to repeat at {self.position - 1}")
        return One(self.folded(chars(char)))

    def group(self, depth: int) -> Tree | None:
        if not self.take("?"):
            return self.closed(depth)
        if self.take(":"):
            return self.closed(depth)
        if self.take("="):
            return Ahead(self.closed(depth), negative=False)
        if self.take("!"):
            return Ahead(self.closed(depth), negative=True)
        if self.take("<=") or self.take("<!"):
            raise PatternUnsupported("look-behind is not supported")
        if self.take("P="):
            raise PatternUnsupported("back-references are not regular")
        if self.take("P<") or self.take("<"):
            close = self.pattern.find(">", self.position)
            if close < 0:
                raise PatternError("group name without '>'")
            self.position = close + 1
            return self.closed(depth)
        if self.take("#"):
            close = self.pattern.find(")", self.position)
            self.position = len(self.pattern) if close < 0 else close + 1
            return None
        return self.flags(depth)

    def flags(self, depth: int) -> Tree | None:
        saved = self.fold, self.dot_all
        on = True
        while (char := self.next()) not in "):":
            if char == "-":
                on = False
            elif char == "i":
                self.fold = on
            elif char == "s":
                self.dot_all = on
            elif char not in "ua":
                raise PatternUnsupported(f"flag or group (?{char} is not supported")
        if char == ")":
            return None
        body = self.closed(depth)
        self.fold, self.dot_all = saved
        return body

    def closed(self, depth: int) -> Tree:
        saved = self.fold, self.dot_all
        body = self.alternatives(depth + 1)
        if not self.take(")"):
            raise PatternError("missing ')'")
        self.fold, self.dot_all = saved
        return body

    # ------------------------------------------------------------ characters

    def escape(self) -> Tree:
        char = self.next()
        if char == "b":
            return Anchor("boundary")
        if char == "B":
            return Anchor("inside")
        if char == "A" and self.dialect == "python":
            return Anchor("begin")
        if char in "zZ" and self.dialect == "python":
            return Anchor("end")
        if char in "123456789" or (char == "k" and self.peek() == "<"):
            raise PatternUnsupported("back-references are not regular")
        return One(self.folded(self.escaped_set(char)))

    def escaped_set(self, char: str) -> CharSet:
        """What ``\\char`` means in and outside of brackets."""
        shorthand = self.shorthand(char)
        if shorthand is not None:
            return shorthand
        if char in "pP" and self.peek() == "{":
            return self.property(negative=char == "P")
        return charset([(point := self.point(char), point)])

    def shorthand(self, char: str) -> CharSet | None:
        ecma = self.dialect == "ecma"
        if char == "d":
            return DIGIT
        if char == "D":
            return ~DIGIT if ecma else ~category("Nd")
        if char == "w":
            return WORD
        if char == "W":
            return ~WORD if ecma else ~(category("L") | category("N") | WORD)
        if char == "s":
            return SPACE if ecma else SPACE_ASCII
        if char == "S":
            return ~SPACE if ecma else ~(SPACE | category("Z") | charset([(0x1C, 0x1F), (0x85, 0x85)]))
        return None

    def property(self, *, negative: bool) -> CharSet:
        close = self.pattern.find("}", self.position)
        name = self.pattern[self.position + 1 : close]
        found = unicode_property(name) if close > 0 else None
        if found is None:
            raise PatternUnsupported(f"Unicode property {name!r} is not known")
        self.position = close + 1
        return ~found if negative else found

    def point(self, char: str) -> int:
        if char in _SIMPLE:
            return _SIMPLE[char]
        if char == "a" and self.dialect == "python":
            return 0x07
        if char == "0":
            return 0
        if char == "x" and (value := self.hexadecimal(2)) is not None:
            return value
        if char == "u":
            return self.unicode_escape()
        if char == "U" and self.dialect == "python" and (value := self.hexadecimal(8)) is not None:
            return value
        if char == "c" and self.peek().isalpha():
            return ord(self.next()) % 32
        if char.isalnum() and char.isascii() and self.dialect == "python":
            raise PatternError(f"bad escape \\{char}")
        return ord(char)

    def unicode_escape(self) -> int:
        if self.peek() == "{":
            close = self.pattern.find("}", self.position)
            digits = self.pattern[self.position + 1 : close]
            try:
                value = int(digits, 16)
            except ValueError:
                return ord("u")
            if value > LAST:
                raise PatternError(f"\\u{{{digits}}} is not a code point")
            self.position = close + 1
            return value
        first = self.hexadecimal(4)
        if first is None:
            return ord("u")
        if 0xD800 <= first < 0xDC00 and self.pattern.startswith("\\u", self.position):
            start = self.position
            self.position += 2
            second = self.hexadecimal(4)
            if second is not None and 0xDC00 <= second < 0xE000:
                return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            self.position = start
        return first

    def hexadecimal(self, digits: int) -> int | None:
        text = self.pattern[self.position : self.position + digits]
        try:
            value = int(text, 16)
        except ValueError:
            return None
        if len(text) < digits or not text.isalnum():
            return None
        self.position += digits
        return value

    def bracket(self) -> CharSet:
        negative = self.take("^")
        ranges: list[tuple[int, int]] = []
        found = NONE
        first = True
        while True:
            char = self.next()
            if char == "]" and not (first and self.dialect == "python"):
                break
            first = False
            low = self.member(char)
            if not isinstance(low, int):
                found |= low
                continue
            ahead = self.pattern[self.position : self.position + 2]
            if len(ahead) == 2 and ahead[0] == "-" and ahead[1] != "]":
                self.position += 1
                high = self.member(self.next())
                if isinstance(high, int):
                    if high < low:
                        raise PatternError(f"range out of order in a class at {self.position}")
                    ranges.append((low, high))
                    continue
                found |= high | chars("-")
            ranges.append((low, low))
        found |= charset(ranges)
        if self.fold:
            found = self.folded(found)
        return ~found if negative else found

    def member(self, char: str) -> int | CharSet:
        """One code point, or a set for ``\\d`` and its like."""
        if char != "\\":
            return ord(char)
        char = self.next()
        if char == "b":
            return 0x08
        found = self.escaped_set(char)
        return found.lowest if found.size == 1 else found

    def folded(self, found: CharSet) -> CharSet:
        """With ``(?i)``: both cases of each letter (sets of over 3,000 characters are taken as they are)."""
        if not self.fold or found.size > 3000:
            return found
        extra = []
        for first, last in found.ranges:
            for point in range(first, last + 1):
                for other in (chr(point).lower(), chr(point).upper()):
                    if len(other) == 1:
                        extra.append((ord(other), ord(other)))
        return found | charset(extra)

    # ------------------------------------------------------------ input

    def peek(self) -> str:
        return self.pattern[self.position] if self.position < len(self.pattern) else "\0"

    def next(self) -> str:
        if self.position >= len(self.pattern):
            raise PatternError("the pattern ends too early")
        self.position += 1
        return self.pattern[self.position - 1]

    def take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.position):
            self.position += len(text)
            return True
        return False
