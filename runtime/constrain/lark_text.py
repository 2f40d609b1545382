"""What a Lark grammar spells out: the literals and the character classes of its text.

Nothing of the grammar is understood but where its strings and regexes stand; that is enough to say which of them ask
for text that no token spells.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

from ramet.runtime.constrain.grammar import Grammar
from ramet.runtime.constrain.strings.chars import CharSet
from ramet.runtime.constrain.strings.meaning import full
from ramet.runtime.constrain.strings.tree import PatternError, PatternUnsupported

_PARTS = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<data>%(?:json|regex|llguidance|ignore_json)\s*(?=\{))
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<regex>/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\n])+/)[imslux]*""",
    re.VERBOSE,
)


def demands(text: str) -> tuple[frozenset[int], frozenset[CharSet]]:
    """Bytes of its literals, and sets of characters of which it asks for one."""
    grammar = Grammar()
    spelled: set[int] = set()
    for kind, part in _parts(text):
        if kind == "string":
            spelled.update(_unquoted(part).encode("utf-8", "surrogatepass"))
            continue
        try:
            grammar.plain(full(part[1:-1].replace("\\/", "/"), "python"))
        except (PatternError, PatternUnsupported, RecursionError):
            continue  # the engine reads more than we do: it decides
    return frozenset(spelled | grammar.spelled), frozenset(grammar.classes)


def _parts(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while (found := _PARTS.search(text, place)) is not None:
        place = found.end()
        kind = found.lastgroup or ""
        if kind == "data":
            try:
                _, place = json.JSONDecoder().raw_decode(text, place)
            except ValueError:
                return  # the engine says what is wrong with it
        elif kind != "comment":
            yield kind, found[kind]


def _unquoted(literal: str) -> str:
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return literal
    return value if isinstance(value, str) else literal
