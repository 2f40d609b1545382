"""Passages of exactly n tokens, cut from a run of words."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.runtime.protocol.errors import RametError
from ramet.runtime.tokenizer import Tokenizer

_LOOK_AHEAD = 40
_FILLERS = (" the", " a", " of", " and", " in", ".", ",")


class Passages:
    """Takes words from the front, each once; a new lap begins where they run out."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self._words = words
        self._at = 0
        self._sizes: dict[str, int] = {}

    def extend(self, head: str, tokens: int, tail: str = "") -> str:
        """``head`` + fresh words + ``tail``, of exactly ``tokens`` tokens more than ``head`` has (0 for "").

        Raises RametError if this tokeniser cannot spell such a text.
        """
        before = self._count(head)
        wanted = before + tokens
        body = ""
        budget = tokens - self._size(tail)
        while budget > 0:
            word = self._next_word(budget, first=not (head or body))
            body += word
            budget -= self._size(word)
        return self._adjusted(head, body, tail, wanted)

    def begin(self, head: str, tokens: int) -> str:
        """``head`` + fresh words, of exactly ``tokens`` tokens together."""
        return self.extend(head, tokens - self._count(head))

    def _next_word(self, budget: int, *, first: bool) -> str:
        """The first of the words to come that fits into ``budget`` tokens; those before it are passed over."""
        for offset in range(_LOOK_AHEAD):
            word = self._words[(self._at + offset) % len(self._words)]
            spaced = word if first else " " + word
            if self._size(spaced) <= budget:
                self._at += offset + 1
                return spaced
        return _FILLERS[0]

    def _adjusted(self, head: str, body: str, tail: str, wanted: int) -> str:
        """Counts of words add up in most tokenisers, yet not in all: the last word gives way until the sum is right."""
        for _ in range(_LOOK_AHEAD):
            text = head + body + tail
            excess = self._count(text) - wanted
            if excess == 0:
                return text
            for filler in _FILLERS if excess == -1 else ():
                if self._count(head + body + filler + tail) == wanted:
                    return head + body + filler + tail
            if excess > 0:
                body = body[: body.rstrip().rfind(" ")] if " " in body.strip() else ""
            else:
                body += self._next_word(-excess, first=False)
        raise RametError(f"no text of exactly {wanted} tokens was found for this tokeniser: give another --model")

    def _size(self, word: str) -> int:
        size = self._sizes.get(word)
        if size is None:
            size = self._sizes[word] = self._count(word)
        return size

    def _count(self, text: str) -> int:
        return len(self.tokenizer.encode(text)) if text else 0
