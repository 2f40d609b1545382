"""How much text one run may make: a graph that quotes its values into each other doubles it with every line."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.runtime.protocol.errors import InvalidRequest

_OTHER = 64
"""Characters that a value other than text counts as."""


class Budget:
    """Loop thread only."""

    def __init__(self, characters: int) -> None:
        self._characters = characters
        self._left = characters

    def spend(self, characters: int) -> None:
        """Raises InvalidRequest where that is more than what is left."""
        if characters > self._left:
            raise InvalidRequest(
                f"the program makes more than {self._characters} characters of text out of its values in one run: "
                "quote less of them",
                code="text_too_long",
            )
        self._left -= characters

    def spend_value(self, value: object) -> None:
        """The same for all that an answer holds, as often as it holds it."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            self.spend(len(value) if isinstance(value, str) else _OTHER)
            if isinstance(value, Mapping):
                waiting.extend(value.keys())
                waiting.extend(value.values())
            elif isinstance(value, (list, tuple)):
                waiting.extend(value)
