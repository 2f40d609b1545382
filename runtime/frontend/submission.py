"""How requests reach the scheduler: the first time, and again after it has lost them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ramet.runtime.protocol.messages import BranchRef, Constraint, ConstraintSpec, Release

from .branches import Branches
from .generation import OpenRequest
from .link import Link

SPECS_SENT = 4096
"""Constraints that count as sent: far more than requests are open."""


class Submission:
    """Knows which constraints and branches the scheduler of this epoch was told of. Nothing is sent, and nothing lost,
    while no scheduler is known: ``again`` follows then. ``for_worker``: a constraint's key and specification to what is
    sent of it."""

    def __init__(
        self,
        link: Link,
        branches: Branches,
        clock: Callable[[], float],
        for_worker: Callable[[str, ConstraintSpec], ConstraintSpec],
    ) -> None:
        self._for_worker = for_worker
        self._link = link
        self._branches = branches
        self._clock = clock
        self._specs_sent: OrderedDict[str, None] = OrderedDict()
        """The latest: what is sent once more does no harm."""

    def forget(self) -> None:
        """The scheduler may have lost the constraints it was sent."""
        self._specs_sent.clear()

    def knows(self, branch: BranchRef) -> bool:
        """The scheduler of this epoch was told of the branch."""
        return self._branches.known(branch, self._link.epoch)

    def first(self, state: OpenRequest, *, parent_allowed: bool = True) -> None:
        """One Submit for all choices: nothing was generated yet."""
        if not self._link.known:
            return
        self._send_spec(state)
        parent = state.request.parent
        if parent is not None and not (parent_allowed and self.knows(parent[0])):
            parent = None
        state.submitted = True
        state.with_parent = parent is not None
        self._link.send(state.submit(parent, self._clock()))
        for choice in state.choices:
            self._branches.submitted(choice.branch, self._link.epoch)

    def again(self, state: OpenRequest) -> None:
        """What is left of the request, with all ids that it has."""
        if state.done or not state.ready or not self._link.known:
            return
        if all(choice.cached < 0 and choice.finish is None for choice in state.choices):
            self.first(state, parent_allowed=False)
            return
        self._send_spec(state)
        state.submitted, state.with_parent = True, False
        for choice in state.choices:
            if choice.finish is None:
                self._link.send(state.resubmit(choice, self._clock()))
                self._branches.submitted(choice.branch, self._link.epoch)

    def let_go(self, branch: BranchRef) -> None:
        """Nobody will fork the branch any more."""
        if self.knows(branch):
            self._link.send(Release(branch))
        self._branches.forget(branch)

    def with_spec(self, state: OpenRequest) -> bool:
        """The scheduler has forgotten the request's constraint: send both again. False if it was never sent."""
        if state.constraint_key not in self._specs_sent:
            return False
        del self._specs_sent[state.constraint_key]
        if state.accepted:
            self.again(state)
        else:
            self.first(state, parent_allowed=state.with_parent)
        return True

    def _send_spec(self, state: OpenRequest) -> None:
        key, spec = state.constraint_key, state.request.constraint
        if spec is None:
            return
        known = key in self._specs_sent
        self._specs_sent[key] = None
        self._specs_sent.move_to_end(key)
        while len(self._specs_sent) > SPECS_SENT:
            self._specs_sent.popitem(last=False)
        if not known:
            self._link.send(Constraint(key, self._for_worker(key, spec)))
