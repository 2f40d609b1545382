"""Search over alternatives: from a conjunction with open choices to the branches without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ramet.runtime.protocol.errors import ConstraintTooComplex

if TYPE_CHECKING:
    from typing_extensions import Self

P = TypeVar("P")

BRANCHES = 512
"""Bound of the alternatives that one schema may fall into for one JSON type."""

STEPS = 6_000
"""Bound of the alternatives tried on the way."""


class Branch(Protocol[P]):
    """A conjunction under construction. ``choices``: alternatives of which one must hold each."""

    choices: list[list[P]]

    def fork(self) -> Self: ...

    def add(self, part: P) -> bool:
        """Take in one alternative; False if it contradicts what is there."""


B = TypeVar("B", bound=Branch[Any])


class Search:
    """Counts steps over the whole of a compile, so that many small searches are bounded too."""

    def __init__(self) -> None:
        self.steps = 0

    def solve(self, start: B, where: str) -> list[B]:
        """All branches without open choices, in the order of the alternatives."""
        stack = [start]
        leaves: list[B] = []
        while stack:
            branch = stack.pop()
            if not branch.choices:
                leaves.append(branch)
                if len(leaves) > BRANCHES:
                    raise ConstraintTooComplex(f"the schema at {where or '/'} has more than {BRANCHES} alternatives")
                continue
            options = []
            for part in branch.choices.pop():
                self.steps += 1
                if self.steps > STEPS:
                    raise ConstraintTooComplex(f"the schema at {where or '/'} combines too many alternatives")
                option = branch.fork()
                if option.add(part):
                    options.append(option)
            stack.extend(reversed(options))
        return leaves
