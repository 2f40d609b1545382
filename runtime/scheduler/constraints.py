"""Specifications of constraints on their way from the frontends to the worker, in bounded memory.

A frontend sends a specification once; the scheduler keeps it while branches use it, and the latest of the others. The
worker keeps the latest too, more of them than are counted as sent here: so whatever counts as sent is still there.
"""

from __future__ import annotations

from collections import OrderedDict

from ramet.runtime.protocol.messages import Constraint, ConstraintSpec

KEPT_BYTES = 64 * 1024 * 1024
SENT_KEYS = 256
SENT_BYTES = 16 * 1024 * 1024
"""The worker keeps at least twice as many keys and bytes (see ``ramet.runtime.worker.constraints``)."""


class Constraints:
    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._limit = kept_bytes
        self._specs: OrderedDict[str, ConstraintSpec] = OrderedDict()
        self._users: dict[str, int] = {}
        self._sent: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0
        self._sent_bytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._specs

    def put(self, key: str, spec: ConstraintSpec) -> None:
        old = self._specs.pop(key, None)
        if old is not None:
            self._bytes -= _size(old)
            if old != spec:
                self.failed(key)
        self._specs[key] = spec
        self._bytes += _size(spec)
        for other in list(self._specs):
            if self._bytes <= self._limit:
                break
            if other != key and other not in self._users:
                self._bytes -= _size(self._specs.pop(other))

    def enter(self, key: str) -> None:
        """A branch names ``key`` (known); it stays while the branch is open."""
        self._users[key] = self._users.get(key, 0) + 1
        self._specs.move_to_end(key)

    def leave(self, key: str) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]

    def to_send(self, key: str) -> Constraint | None:
        """What the worker must hear before a row that names ``key``; None: it knows."""
        if key in self._sent:
            self._sent.move_to_end(key)
            return None
        spec = self._specs[key]
        self._sent[key] = _size(spec)
        self._sent_bytes += _size(spec)
        while len(self._sent) > 1 and (len(self._sent) > SENT_KEYS or self._sent_bytes > SENT_BYTES):
            self._sent_bytes -= self._sent.popitem(last=False)[1]
        return Constraint(key, spec)

    def failed(self, key: str) -> None:
        """The worker could not use it: it is sent anew for the next row."""
        self._sent_bytes -= self._sent.pop(key, 0)

    def new_worker(self) -> None:
        self._sent.clear()
        self._sent_bytes = 0


def _size(spec: ConstraintSpec) -> int:
    return len(spec.text) + len(spec.options) + 64
