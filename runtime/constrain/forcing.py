"""Forced ids: what must follow whatever is sampled, as far as the tokeniser's own encoding is certain."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.runtime.constrain.table import Table
    from ramet.runtime.constrain.vocabulary import Vocabulary

LONGEST = 1000
"""Bound of forced text in bytes, looked for at once."""

TAIL = 4
"""Ids at the end of forced text that what follows is thought to reach back to."""

REMEMBERED = 10_000

PROBES = [*string.punctuation, "a", "0", " "]
"""Beginnings of what may follow."""


class Tails:
    """Merges go from left to right over whole words, so text behind an id may change ids well in front of it: ``":""``
    is ``":`` and ``""``, with a comma and a quote behind it is ``":"`` and ``","``. Such ids are not certain."""

    def __init__(self, encode: Callable[[str], list[int]], table: Sequence[bytes]) -> None:
        self._encode = encode
        self._table = table
        self._known: dict[tuple[int, ...], int] = {}
        self._texts: dict[bytes, tuple[list[int], int]] = {}

    def of(self, text: bytes) -> tuple[list[int], int]:
        """Ids of the text (as far as it is whole characters), and how many of them are certain."""
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) >= REMEMBERED:
                self._texts.clear()
            ids = self._encode(text.decode(errors="ignore"))
            found = self._texts[text] = (ids, self.certain(ids))
        return found

    def certain(self, ids: Sequence[int]) -> int:
        """How many of the ids of a text stay the same whatever follows; that the last one may become longer is not
        looked at."""
        tail = tuple(ids[-TAIL:])
        found = self._known.get(tail)
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found = self._known[tail] = self._changing(tail)
        return len(ids) - found

    def _changing(self, tail: tuple[int, ...]) -> int:
        """Ids at the end of the tail of which some probe changes more than the last."""
        try:
            text = b"".join(self._table[token] for token in tail).decode()
        except UnicodeDecodeError:
            return 0
        if tuple(self._encode(text)) != tail:
            return 0
        worst = 0
        for probe in PROBES:
            changed = len(tail) - _common(tail, self._encode(text + probe))
            if changed > 1:
                worst = max(worst, changed)
        return worst


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    count = 0
    for first, second in zip(left, right, strict=False):
        if first != second:
            break
        count += 1
    return count


class Forcing:
    """Ids that must follow, by state and last id: forced bytes, in the tokeniser's own encoding, without those ids at
    the end that a longer token could take the place of."""

    def __init__(self, table: Table, vocabulary: Vocabulary) -> None:
        self._table = table
        self._vocabulary = vocabulary
        self._known: dict[tuple[int, int | None], tuple[int, ...]] = {}

    def ids(self, state: int, last: int | None) -> tuple[int, ...]:
        found = self._known.get((state, last))
        if found is None:
            found = self._known[state, last] = self._find(state, last)
        return found

    def _find(self, state: int, last: int | None) -> tuple[int, ...]:
        text, states = self._bytes(state)
        if not text:
            return ()
        before = b"" if last is None else self._vocabulary.table[last]
        whole = before + text
        cut = len(whole)
        while True:
            try:
                ids = self._vocabulary.encode(whole[:cut].decode())
                break
            except UnicodeDecodeError as error:
                cut = error.start
        if last is not None:
            if not ids or ids[0] != last:
                return ()
            ids = ids[1:]
        return self._safe(ids, text, states)

    def _bytes(self, state: int) -> tuple[bytes, list[int]]:
        """What must follow the state, byte by byte, and the states on the way (one more than bytes)."""
        text = bytearray()
        states = [state]
        while not self._table.ends[state] and len(text) < LONGEST:
            byte = self._exit(state)
            token = None if byte is None else self._vocabulary.single_bytes.get(byte)
            if byte is None or token is None:
                break
            state = self._table.step(state, token)
            text.append(byte)
            states.append(state)
        return bytes(text), states

    def _exit(self, state: int) -> int | None:
        """The one byte that may follow; None if there are several."""
        low, high = self._table.span(state)
        heads = self._vocabulary.first_bytes[self._table.tokens[low:high]]
        return int(heads[0]) if len(heads) and bool((heads == heads[0]).all()) else None

    def _safe(self, ids: Sequence[int], text: bytes, states: list[int]) -> tuple[int, ...]:
        """The ids up to the first place from which a token reaches beyond the forced text."""
        limit = next((place for place in range(len(text)) if self._reaches(states[place], text[place:])), len(text))
        kept: list[int] = []
        end = 0
        for token in ids:
            end += len(self._vocabulary.table[token])
            if end > limit:
                break
            kept.append(token)
        return tuple(kept[: self._vocabulary.tails.certain(ids)])

    def _reaches(self, state: int, tail: bytes) -> bool:
        low, high = self._table.span(state)
        tokens = self._table.tokens[low:high]
        table = self._vocabulary.table
        longer = tokens[self._vocabulary.lengths[tokens] > len(tail)]
        return any(table[token].startswith(tail) for token in longer.tolist())
