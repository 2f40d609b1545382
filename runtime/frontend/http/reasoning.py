"""What a model thinks before it answers: text between <think> and </think> at the beginning of what it writes.

Templates of some models write the opening into the prompt, so that the answer begins inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BEGIN, END = "<think>", "</think>"
_LOOK_BACK = 8


@dataclass(frozen=True)
class Reasoning:
    """Thoughts are told apart. ``inside``: the prompt has opened one; ``shown``: they are part of the answer."""

    inside: bool
    shown: bool


class Thought:
    """Takes the text of one choice as it comes. Joined, the pieces are what ``split`` gives for the whole."""

    def __init__(self, inside: bool) -> None:
        """``inside``: the prompt has opened it."""
        self._held = BEGIN if inside else ""
        self._begun = self._said = False
        self._fresh = True
        """No letter of the thought has come."""

    def feed(self, text: str, *, last: bool) -> tuple[str, str]:
        """(thought, said): what is certain now. Blanks around the thought belong to neither."""
        if self._said:
            return "", text
        self._held += text
        if not self._begun:
            start = self._held.lstrip()
            if not start.startswith(BEGIN):
                if BEGIN.startswith(start) and not last:
                    return "", ""
                self._said = True
                return "", self._held
            self._begun = True
            self._held = start[len(BEGIN) :]
        return self._inside(last)

    def _inside(self, last: bool) -> tuple[str, str]:
        if self._fresh:
            self._held = self._held.lstrip()
            self._fresh = not self._held
        thought, found, rest = self._held.partition(END)
        if found:
            if rest.strip() or last:
                self._said = True
                return thought.rstrip(), rest.lstrip()
            return "", ""  # blanks between thought and answer: the next text decides
        if last:
            return self._held.rstrip(), ""
        free = self._held
        for size in range(min(len(END), len(free)), 0, -1):
            if free.endswith(END[:size]):
                free = free[:-size]
                break
        free = free.rstrip()
        self._held = self._held[len(free) :]
        return free, ""


def split(text: str, inside: bool) -> tuple[str, str]:
    """(thought, said) of a whole text."""
    return Thought(inside).feed(text, last=True)


def opened(table: Sequence[bytes], prompt: Sequence[int]) -> bool:
    """Whether the prompt ends with the opening."""
    tail = b"".join(table[token] for token in prompt[-_LOOK_BACK:] if token < len(table))
    return tail.decode(errors="replace").rstrip().endswith(BEGIN)


def thought_tokens(table: Sequence[bytes], ids: Sequence[int], inside: bool) -> int:
    """How many of a choice's ids were thought, tags included."""
    data, end = b"", END.encode()
    for index, token in enumerate(ids):
        piece = table[token] if token < len(table) else b""
        data += piece
        if end in data[-len(end) - len(piece) :]:
            return index + 1 if inside or data.lstrip().startswith(BEGIN.encode()) else 0
    return len(ids) if inside or data.lstrip().startswith(BEGIN.encode()) else 0
