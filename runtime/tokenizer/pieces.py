"""Long texts, encoded piece by piece: what texts have in common is encoded once.

Requests of one program begin with the same thousands of characters. A text is cut where its tokeniser cuts it anyway,
between an ASCII letter and a blank, at least ``PIECE`` characters apart and counted from its beginning: so texts with
a common beginning have common pieces, and their ids are remembered.

    The quick brown … fox | jumps over … dog | and so on        pieces
                          ^ letter, blank    ^                  no token spans it: blanks begin words
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

import msgspec
from msgspec import Struct

PIECE = 512
"""Characters."""
_CUT = re.compile(r"[A-Za-z](?= )")
_REMEMBERED = 2048
"""Pieces: a megabyte of text and as much of ids."""


class _Step(Struct):
    type: str
    add_prefix_space: bool = False
    use_regex: bool = True
    pretokenizers: list[_Step] = []


class _Added(Struct):
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _File(Struct):
    normalizer: object = None
    pre_tokenizer: _Step | None = None
    added_tokens: list[_Added] = []


def cuts_before_blanks(definition: str) -> bool:
    """Whether the tokeniser of tokenizer.json's text surely cuts between any letter and a blank: byte-level BPE with
    GPT-2's expression, digits alone or not, no normaliser, no added token that reaches over such a place."""
    try:
        file = msgspec.json.decode(definition, type=_File)
    except msgspec.MsgspecError:
        return False
    first = file.pre_tokenizer
    if file.normalizer is not None or first is None:
        return False
    steps = first.pretokenizers if first.type == "Sequence" else [first]
    last = steps[-1] if steps else first
    return (
        last.type == "ByteLevel"
        and last.use_regex
        and not last.add_prefix_space
        and all(step.type == "Digits" for step in steps[:-1])
        and not any(
            token.single_word or token.lstrip or token.rstrip or _CUT.search(token.content)
            for token in file.added_tokens
        )
    )


class Pieces:
    """``encode`` gives the ids of a text, control tokens read (True) or not. May be used by several
    threads: one that encodes keeps no other waiting."""

    def __init__(self, encode: Callable[[str, bool], list[int]], piece: int = PIECE) -> None:
        self._encode = encode
        self._piece = piece
        self._lock = Lock()
        self._known: OrderedDict[tuple[bool, str], array[int]] = OrderedDict()

    def ids(self, text: str, special: bool) -> list[int]:
        ids: list[int] = []
        at = 0
        while len(text) - at > 2 * self._piece:
            cut = _CUT.search(text, at + self._piece)
            if cut is None or cut.end() - at > 16 * self._piece:  # no words: nothing that is worth remembering
                break
            ids.extend(self._remembered(text[at : cut.end()], special))
            at = cut.end()
        ids.extend(self._encode(text[at:] if at else text, special))
        return ids

    def _remembered(self, piece: str, special: bool) -> array[int]:
        key = (special, piece)
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        found = array("i", self._encode(piece, special))
        with self._lock:
            self._known[key] = found
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found
