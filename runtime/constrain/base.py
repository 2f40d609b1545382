"""What the worker sees of a constraint: compiled once per (specification, tokeniser), a cheap matcher per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """State of one row. Not thread-safe; different matchers are independent (filling masks releases the GIL)."""

    def advance(self, ids: Sequence[int]) -> bool:
        """Consume ids; False (and an unchanged state) if one of them is not allowed."""

    def forced(self) -> list[int]:
        """Ids that must follow whatever is sampled, in the tokeniser's own encoding; empty if there is a choice."""

    def fill_mask(self, row: NDArray[np.uint32]) -> None:
        """Allowed next ids as bits (id t: bit t % 32 of word t // 32); end ids are set where the text may end."""

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` ids."""

    def fork(self) -> Matcher: ...

    @property
    def can_end(self) -> bool:
        """The text so far is complete."""

    @property
    def finished(self) -> bool:
        """The text is complete and nothing but an end id may follow: the row ends without a further step."""


class CompiledConstraint(Protocol):
    lane: str
    """``engine`` or ``table``: a pure function of (specification, tokeniser, version)."""

    size: int
    """Approximate bytes, for the byte limit of the cache."""

    def matcher(self) -> Matcher: ...
