"""Items that must differ (``uniqueItems``), enforced while the text is written: the matcher knows the items so far."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.constrain.base import Matcher
from ramet.runtime.constrain.scanner import AFTER, PLAIN, STRING, VALUE, WORDS, Place, State, feed, start
from ramet.runtime.protocol.errors import GenerationFailed


class TokenIndex:
    """Tokens that can complete an item of an array, by the way in which they do."""

    def __init__(self, table: Sequence[bytes]) -> None:
        self.table = table
        self._sorted = sorted((token, index) for index, token in enumerate(table) if token)
        self._longest = max(map(len, table), default=0)
        self.closers = [index for index, token in enumerate(table) if b"]" in token or b"}" in token]
        self.plain_ends = [index for index, token in enumerate(table) if _ends_plain(token)]
        self.word_starts = [index for index, token in enumerate(table) if token.lstrip(b"[, \t\n\r")[:1] in WORDS]
        self.several = [index for index, token in enumerate(table) if _several(token)]

    def starting_with(self, head: bytes) -> Iterator[int]:
        for place in range(bisect_left(self._sorted, (head, -1)), len(self._sorted)):
            token, index = self._sorted[place]
            if not token.startswith(head):
                return
            yield index

    def beginning(self, text: bytes) -> Iterator[int]:
        """Tokens with which the text begins."""
        for length in range(1, min(len(text), self._longest) + 1):
            place = bisect_left(self._sorted, (text[:length], -1))
            while place < len(self._sorted) and self._sorted[place][0] == text[:length]:
                yield self._sorted[place][1]
                place += 1


def _ends_plain(token: bytes) -> bool:
    """Characters of numbers and words, then a byte that ends them."""
    rest = token.lstrip(b"-+.0123456789eEtrufalsn")
    return rest[:1] in (b",", b"]", b" ", b"\t", b"\n", b"\r")


def _several(token: bytes) -> bool:
    """An item may begin and end within the token."""
    return sum(map(token.count, (b'"', b",", b"[", b"]", b"}"))) >= 2


class UniqueMatcher:
    """See ``base.Matcher``. Wraps the engine's matcher, which enforces everything but that items differ.

    ``_states[n]`` and ``_ends[n]``: state and length of the text after n ids.
    """

    def __init__(self, inner: Matcher, root: Place, index: TokenIndex) -> None:
        self._inner = inner
        self._root = root
        self._index = index
        self._states: list[State] = [start(root)]
        self._ends = [0]
        self._text = b""

    def advance(self, ids: Sequence[int]) -> bool:
        # The engine first: what follows the text relies on its being the beginning of JSON.
        if not self._inner.advance(ids):
            return False
        states = self._follow(ids)
        if states is None:
            self._inner.rollback(len(ids))
            return False
        self._states += states
        for token in ids:
            self._text += self._index.table[token]
            self._ends.append(len(self._text))
        return True

    def forced(self) -> list[int]:
        ids = self._inner.forced()
        while ids and self._follow(ids) is None:
            ids.pop()
        return ids

    def fill_mask(self, row: NDArray[np.uint32]) -> None:
        self._inner.fill_mask(row)
        for token in self._suspects():
            word, bit = token >> 5, np.uint32(1 << (token & 31))
            if row[word] & bit and self._follow([token]) is None:
                row[word] &= ~bit
        if not row.any():
            raise GenerationFailed("uniqueItems leaves no way to go on: every item that may follow is there already")

    def rollback(self, count: int) -> None:
        self._inner.rollback(count)
        if count:
            del self._states[-count:], self._ends[-count:]
            self._text = self._text[: self._ends[-1]]

    def fork(self) -> UniqueMatcher:
        twin = UniqueMatcher(self._inner.fork(), self._root, self._index)
        twin._states, twin._ends, twin._text = self._states.copy(), self._ends.copy(), self._text
        return twin

    @property
    def can_end(self) -> bool:
        return self._inner.can_end

    @property
    def finished(self) -> bool:
        return self._inner.finished

    def _follow(self, ids: Sequence[int]) -> list[State] | None:
        """States after each id; None if one completes an item that is there already."""
        states: list[State] = []
        state: State | None = self._states[-1]
        text = self._text
        for token in ids:
            data = self._index.table[token]
            assert state is not None
            state = feed(state, text, data)
            if state is None:
                return None
            text += data
            states.append(state)
        return states

    def _suspects(self) -> Iterator[int]:
        """Tokens that may complete an item a second time."""
        state = self._states[-1]
        frame = state.frame
        if not state.watched:
            if state.place is not None and state.place.unique:
                yield from self._index.several
            return
        yield from self._index.several
        if frame is None or frame.seen is None:
            yield from self._index.closers
            return
        if state.mode in (VALUE, PLAIN, AFTER):
            yield from self._index.plain_ends
        if any(word in frame.seen for word in WORDS.values()):
            yield from self._index.word_starts
        if state.mode in (VALUE, STRING):
            begun = self._text[state.start :] if state.mode == STRING else b""
            for item in frame.seen:
                if isinstance(item, str):
                    spelled = json.dumps(item, ensure_ascii=False).encode()
                    if spelled.startswith(begun):
                        yield from self._index.starting_with(spelled[len(begun) :])
