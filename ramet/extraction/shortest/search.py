"""Distances to the end of a text in tokens, and the search for an end that is as short as any.

``Distances`` measures in the machine of ``machine``, which allows a bit more than the constraint does: its distances
are lower bounds. ``Search`` walks the constraint's own matcher by depth, and only where the bound leaves it enough
tokens; so the first end that it finds is a shortest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ramet.extraction.shortest.machine import Machine
from ramet.runtime.constrain.base import Matcher
from ramet.runtime.constrain.trie import Trie, walk

STATES = 200_000
"""States of a machine that may be made; more, and nothing is said about the shortest end."""

STEPS = 20_000
"""Tokens that one search may try on the matcher."""


class TooFar(Exception):
    """The bounds above are reached."""


class Distances:
    """Over one machine and the tokens of a vocabulary. What tokens lead to is kept from call to call.

    A copied string that may end is taken to end there, and one that could have ended after the same token is not gone
    on with: that saves looking at most of the document. It makes no end longer where ``ends_alone`` holds of the
    tokens, because the tokens behind the copied text serve as well in front of which nothing more was copied.
    """

    def __init__(self, machine: Machine, trie: Trie, *, ends_alone: bool) -> None:
        self.machine = machine
        self._trie = trie
        self._settles = ends_alone and not machine.compares_items
        self._after: dict[int, dict[int, NDArray[np.int32]]] = {}

    def place(self, state: int) -> int:
        """The state that stands for ``state`` here."""
        return self.machine.settled(state) if self._settles else state

    def after(self, state: int) -> dict[int, NDArray[np.int32]]:
        """Tokens by the state that they lead to."""
        if state not in self._after:
            self._walk([state])
        return self._after[state]

    def to_end(self, start: int, most: int, slack: int = 0) -> dict[int, int] | None:
        """Tokens from a state to the end, of all states that lie on a way of the shortest length, or up to ``slack``
        tokens longer; None if the shortest way has more than ``most``."""
        start = self.place(start)
        levels, seen = [[start]], {start: 0}
        last = None
        while levels[-1] and len(levels) - 1 <= most and (last is None or len(levels) - 1 <= last + slack):
            if last is None and any(map(self.machine.final, levels[-1])):
                last = len(levels) - 1
                if slack == 0:
                    break
            self._walk([state for state in levels[-1] if state not in self._after])
            found = [after for state in levels[-1] for after in self._after[state] if after not in seen]
            levels.append(list(dict.fromkeys(found)))
            seen.update(dict.fromkeys(levels[-1], len(levels) - 1))
        if last is None:
            return None
        return self._back(levels)

    def _back(self, levels: list[list[int]]) -> dict[int, int]:
        """Distances to the end inside of what was reached."""
        before: dict[int, list[int]] = {}
        reached = {state for level in levels for state in level}
        for state in reached & self._after.keys():
            for after in self._after[state].keys() & reached:
                before.setdefault(after, []).append(state)
        found = {state: 0 for state in reached if self.machine.final(state)}
        wave = list(found)
        while wave:
            fresh = dict.fromkeys(state for after in wave for state in before.get(after, ()) if state not in found)
            found.update((state, found[wave[0]] + 1) for state in fresh)
            wave = list(fresh)
        return found

    def _walk(self, states: list[int]) -> None:
        if not states:
            return
        if self.machine.size > STATES:
            raise TooFar
        source, tokens, after = walk(self._trie, self.machine.follow, np.array(states, np.int32))
        order = np.lexsort((tokens, after, source))
        source, tokens, after = source[order], tokens[order], after[order]
        self._after.update((state, {}) for state in states)
        new = np.flatnonzero((np.diff(source, prepend=-1) != 0) | (np.diff(after, prepend=-1) != 0))
        for first, last in zip(new.tolist(), [*new[1:].tolist(), len(tokens)], strict=True):
            self._after[int(source[first])][int(after[first])] = tokens[first:last]
        if self._settles:
            self._after.update((state, self._fewer(self._after[state])) for state in states)

    def _fewer(self, found: dict[int, NDArray[np.int32]]) -> dict[int, NDArray[np.int32]]:
        """Without states of copied strings that others stand for."""
        parts: dict[int, list[NDArray[np.int32]]] = {}
        for state, tokens in found.items():
            parts.setdefault(self.machine.settled(state), []).append(tokens)
        return {
            state: tokens[0] if len(tokens) == 1 else np.sort(np.concatenate(tokens))
            for state, tokens in parts.items()
            if self.machine.behind_copy(state) not in parts
        }


def ends_alone(table: Sequence[bytes]) -> bool:
    """Whether each token that ends a string inside of it has a twin that begins with the quotation mark."""
    tokens = set(table)
    return all(
        token[at:] in tokens
        for token in tokens
        for at in range(1, len(token))
        if token[at] == 0x22 and token[at + 1 : at + 2] in (b"", b",", b"}", b"]")
    )


class Search:
    """For ends of one text, whose state in the machine is ``start`` and in the constraint ``matcher``."""

    def __init__(self, distances: Distances, matcher: Matcher) -> None:
        self._distances = distances
        self._matcher = matcher
        self._steps = 0
        self._bounds: dict[int, int] = {}

    def shortest(self, start: int, most: int) -> list[int] | None:
        """Tokens of a shortest end, if it has at most ``most``. Raises TooFar."""
        start = self._distances.place(start)
        found = self._distances.to_end(start, most)
        if found is None:
            return None
        least = found[start]
        for length in range(least, most + 1):
            bounds = self._distances.to_end(start, most, length - least)
            assert bounds is not None
            self._bounds = bounds
            end = self._within(start, length)
            if end is not None:
                return end
        return None

    def _within(self, state: int, left: int) -> list[int] | None:
        """An end of at most ``left`` tokens, the matcher being in ``state``; it is there again afterwards, or at the
        end that was found."""
        if self._distances.machine.final(state) and self._matcher.can_end:
            return []
        for after, token in self._ways(state, left):
            self._steps += 1
            if self._steps > STEPS:
                raise TooFar
            if not self._matcher.advance([token]):
                continue
            rest = self._within(after, left - 1)
            if rest is not None:
                return [token, *rest]
            self._matcher.rollback(1)
        return None

    def _ways(self, state: int, left: int) -> Iterator[tuple[int, int]]:
        """Next states that are near enough to the end, the nearest first, and the tokens that lead there."""
        tokens = self._distances.after(state)
        near = [after for after in tokens if self._bounds.get(after, left) <= left - 1]
        for after in sorted(near, key=self._bounds.__getitem__):
            for token in tokens[after].tolist():
                yield after, token
