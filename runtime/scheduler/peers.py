"""Who is on the line: frontends by address, and the one worker."""

from __future__ import annotations

from dataclasses import dataclass

SILENCE_S = 5.0
"""A frontend that says nothing for so long is taken for dead. One that lives all the same asks again (its loop was
blocked, or its machine asleep)."""
STALL_S = 2.0
"""A turn later than this was our own stall (or the machine's sleep): nobody's silence counts for it."""


@dataclass(slots=True)
class _Frontend:
    instance: int
    heard: float


class Frontends:
    """Frontends that are alive. Pure: time is an argument."""

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._known: dict[bytes, _Frontend] = {}
        self._looked = 0.0

    def __len__(self) -> int:
        return len(self._known)

    def heard(self, address: bytes, now: float, instance: int = 0) -> bool:
        """A frame came; True if its sender lost its state since the last one (another instance)."""
        known = self._known.get(address)
        if known is None:
            self._known[address] = _Frontend(instance, now)
            return False
        known.heard = now
        if instance and known.instance and instance != known.instance:
            known.instance = instance
            return True
        known.instance = known.instance or instance
        return False

    def gone(self, address: bytes) -> None:
        self._known.pop(address, None)

    def silent(self, now: float) -> list[bytes]:
        """Addresses to give up; they are forgotten here."""
        if now - self._looked > STALL_S:
            for frontend in self._known.values():
                frontend.heard = max(frontend.heard, now - self._silence_s / 2)
        self._looked = now
        dead = [address for address, frontend in self._known.items() if now - frontend.heard > self._silence_s]
        for address in dead:
            del self._known[address]
        return dead


@dataclass(slots=True)
class WorkerPeer:
    """The worker that was heard last; ``instance`` 0: none yet."""

    address: bytes = b""
    instance: int = 0
    fingerprint: str = ""
    blocks: int = 0
    block_size: int = 0
