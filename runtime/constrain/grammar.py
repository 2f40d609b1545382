"""A grammar in the engine's notation, under construction: rules and terminals with names, equal ones shared."""

from __future__ import annotations

import json

from ramet.runtime.constrain.numbers import NUMBER
from ramet.runtime.constrain.strings.chars import CharSet
from ramet.runtime.constrain.strings.lang import ANY, Alt, Both, Chars, Lang, Rep, Seq, Texts
from ramet.runtime.constrain.strings.write import CHARS, Writer
from ramet.runtime.constrain.substrings import Substring
from ramet.runtime.protocol.errors import ConstraintTooComplex, UnsupportedConstraint

SIZE = 4_000_000
"""Bound of a grammar's text in characters."""

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""One gap of flexible JSON text: bounded, so that a model cannot fill its budget with blanks."""


class Grammar:
    """``flexible``: blanks may stand between the tokens of JSON text."""

    def __init__(self, *, flexible: bool = False) -> None:
        self.flexible = flexible
        self.text = Writer(json=True)
        self.raw = Writer(json=False)
        self.spelled: set[int] = set()
        """Bytes of literals: text that the model may be forced to write."""
        self.classes: set[CharSet] = set()
        """Sets of characters of which one has to be written as it is."""
        self._lines: list[str] = []
        self._rules: dict[str, str] = {}
        self._terminals: dict[str, str] = {}
        self._strings: dict[Lang, str] = {}
        self._numbers: dict[Lang, str] = {}
        self._constants: set[str] = set()
        self._spelt: set[tuple[Lang, bool]] = set()
        self._heads: dict[str, tuple[str, str]] = {}
        self._size = 0
        self._count = 0

    def fresh(self, prefix: str) -> str:
        """A name that is not in use."""
        self._count += 1
        return f"{prefix}{self._count}"

    def define(self, name: str, body: str) -> None:
        """A rule of its own; parametric rules have ``::_`` in their name.

        A parametric rule with one unconditional alternative gets a condition that always holds: the engine inlines it
        otherwise, and fails where the call changes the parameter.
        """
        if name.endswith("::_") and " | " not in body and " %if " not in body:
            body = f"{body} %if ge(_, 0)"
        self._size += len(name) + len(body)
        if self._size > SIZE:
            raise ConstraintTooComplex(f"the grammar grows beyond {SIZE} characters")
        self._lines.append(f"{name}: {body}")

    def rule(self, body: str, prefix: str = "r") -> str:
        """Name of a rule with this body."""
        found = self._rules.get(body)
        if found is None:
            found = self._rules[body] = self.fresh(prefix)
            self.define(found, body)
        return found

    def terminal(self, body: str) -> str:
        found = self._terminals.get(body)
        if found is None:
            found = self._terminals[body] = self.fresh("T")
            self.define(found, body)
        return found

    def string(self, lang: Lang) -> str:
        """Terminal of the JSON strings whose content is in the language."""
        found = self._strings.get(lang)
        if found is None:
            self._spell(lang, quoted=True)
            found = self._strings[lang] = self.terminal(self.text.string(lang))
        return found

    def stand_for(self, constant: str, substring: Substring) -> None:
        """The string ``constant``, where it is all that may be written, stands for the substrings of a text instead."""
        held, bounded = self.terminal(substring.contained()), self.terminal(substring.bounded())
        both = self.terminal(f"{held} & {bounded}")
        self._strings[Texts((constant,))] = self.terminal(f'"\\"" {both} "\\""')
        self._constants.add(constant)

    def number(self, lang: Lang) -> str:
        found = self._numbers.get(lang)
        if found is None:
            found = self._numbers[lang] = self.terminal(self.raw.terminal(lang))
        return found

    def keys(self, lang: Lang) -> tuple[str, str]:
        """What stands for a key of the language with its colon, without and with a comma in front.

        Comma, key and colon are one terminal in compact text, everywhere: the engine's lexer is greedy and does not go
        back, so where two ways of writing are open, both must end a terminal at the same place.
        """
        if self.flexible:
            head = f'{self.string(lang)} ":"'
            return head, f'"," {head}'
        self._spell(lang, quoted=True)
        body = self.text.terminal(lang)
        key = body if body == CHARS else self.terminal(body)
        return self.terminal(f'"\\"" {key} "\\":"'), self.terminal(f'",\\"" {key} "\\":"')

    def named_key(self, key: str) -> tuple[str, str]:
        """What stands for a key with its colon, without and with a comma in front."""
        found = self._heads.get(key)
        if found is None:
            text = f'"{key}"' if key.isalnum() and key.isascii() else json.dumps(key, ensure_ascii=False)
            if self.flexible:
                head = f"{self.literal(text)} {self.literal(':')}"
                found = head, f'"," {head}'
            else:
                found = self.literal(f"{text}:"), self.literal(f",{text}:")
            self._heads[key] = found
        return found

    def literal(self, text: str) -> str:
        """A literal of the grammar for exactly this text."""
        if text.isascii() and text.isprintable() and "\\" not in text:
            return '"' + text.replace('"', '\\"') + '"'
        self.spelled.update(text.encode("utf-8", "surrogatepass"))
        return json.dumps(text).replace("\x7f", "\\u007f")

    def plain(self, lang: Lang) -> str:
        """Terminal of the language as it is, without JSON quotes."""
        self._spell(lang)
        return self.terminal(self.raw.terminal(lang))

    def lazy(self, end: str) -> str:
        """Free text up to and including the first occurrence of ``end``."""
        name = self.fresh("l")
        self.define(f"{name}[lazy]", f"/(?s:.*)/ {self.literal(end)}")
        return name

    def rest(self) -> str:
        """Free text up to the end."""
        return self.terminal("/(?s:.*)/")

    def _spell(self, lang: Lang, *, quoted: bool = False) -> None:
        """Note what the language may demand. ``quoted``: control characters are written as escapes."""
        if (lang, quoted) in self._spelt:
            return
        self._spelt.add((lang, quoted))
        if isinstance(lang, Texts):
            if not self._constants.isdisjoint(lang.texts):
                raise UnsupportedConstraint(
                    "a field that is copied from a text can't be one of several strings: make it a field of its own",
                    keyword="anyOf",
                )
            for text in lang.texts:
                self.spelled.update(
                    (json.dumps(text, ensure_ascii=False) if quoted else text).encode("utf-8", "surrogatepass")
                )
        elif isinstance(lang, Chars):
            if not (quoted and lang.set.ranges and lang.set.ranges[0][0] < 0x80):
                self.classes.add(lang.set)
        elif isinstance(lang, Rep):
            self._spell(lang.part, quoted=quoted)
        elif isinstance(lang, (Seq, Alt, Both)):
            for part in lang.parts:
                self._spell(part, quoted=quoted)

    def anything(self) -> str:
        """The rule of every JSON value."""
        if "any" not in self._rules:
            self._rules["any"] = "any"
            head, comma_head = self.keys(ANY)
            array = '"[" (any ("," any)*)? "]"'
            self.define("any", f'{self.scalar()} | "{{" ({head} any ({comma_head} any)*)? "}}" | {array}')
        return "any"

    def scalar(self) -> str:
        """The rule of every value that is neither array nor object."""
        return self.rule(f'{self.string(ANY)} | {self.number(NUMBER)} | "true" | "false" | "null"', "s")

    def finish(self, start: str) -> str:
        """The whole text."""
        head = ["%llguidance {}"]
        if self.flexible:
            head = ['%llguidance {"ignore_once": true}', f"%ignore /{WHITESPACE}/"]
        return "\n".join([*head, f"start: {start}", *self.text.definitions(), *self._lines])
