"""What the client knows of branches that may be forked: their ids, and in which epoch the scheduler knows them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.protocol.messages import BranchRef

from .choice import Choice


class Branches:
    def __init__(self) -> None:
        self._choices: dict[BranchRef, Choice] = {}
        self._epochs: dict[BranchRef, int] = {}

    def add(self, choice: Choice) -> None:
        self._choices[choice.branch] = choice

    def submitted(self, branch: BranchRef, epoch: int) -> None:
        """The scheduler of this epoch was told of the branch."""
        if branch in self._choices:
            self._epochs[branch] = epoch

    def forget(self, branch: BranchRef) -> None:
        self._choices.pop(branch, None)
        self._epochs.pop(branch, None)

    def known(self, branch: BranchRef, epoch: int) -> bool:
        return self._epochs.get(branch) == epoch

    def __contains__(self, branch: BranchRef) -> bool:
        return branch in self._choices

    def __len__(self) -> int:
        return len(self._choices)

    def ids(self, parent: tuple[BranchRef, int] | None, ids: Sequence[int]) -> array[int]:
        """All ids of the branch that ``parent`` and ``ids`` describe. Raises InvalidRequest."""
        if parent is None:
            return array("i", ids)
        branch, at = parent
        choice = self._choice(branch)
        if not 0 <= at <= len(choice.ids):
            raise InvalidRequest(
                f"parent is cut at {at}, but branch {branch} has {len(choice.ids)} ids", param="parent"
            )
        whole = choice.ids[:at]
        whole.extend(ids)
        return whole

    def _choice(self, branch: BranchRef) -> Choice:
        choice = self._choices.get(branch)
        if choice is None:
            raise InvalidRequest(
                f"branch {branch} is not there: it was released, or it ended and was not kept (set keep)",
                param="parent",
                code="unknown_branch",
            )
        return choice
