"""Messages that have one answer (scores, control): sent, sent again to a restarted scheduler, answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramet.runtime.protocol.errors import RametError, RequestTimeout

MakeMessage = Callable[[bool], Any]
"""The message; True where it may name a parent branch, False where it has to hold all ids."""

GRACE_S = 1.0
"""The scheduler keeps time too; we only step in where it does not answer."""


@dataclass(frozen=True)
class _Call:
    make: MakeMessage
    answer: asyncio.Future[Any]


class Calls:
    """``send`` hands a message to the scheduler, or drops it while none is known (``send_all`` follows then)."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send
        self._open: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, id: int) -> bool:
        return id in self._open

    async def call(self, id: int, make: MakeMessage, timeout_s: float | None) -> Any:
        """The answer. Raises RequestTimeout, or what ``fail`` is given."""
        call = _Call(make, asyncio.get_running_loop().create_future())
        self._open[id] = call
        self._send(make(True))
        try:
            return await asyncio.wait_for(call.answer, None if timeout_s is None else timeout_s + GRACE_S)
        except (TimeoutError, asyncio.TimeoutError):
            raise RequestTimeout(f"no answer within {timeout_s:g} s") from None
        finally:
            self._open.pop(id, None)

    def send_all(self) -> None:
        for call in self._open.values():
            self._send(call.make(False))

    def send_in_full(self, id: int) -> None:
        self._send(self._open[id].make(False))

    def answered(self, id: int, message: Any) -> None:
        call = self._open.get(id)
        if call is not None and not call.answer.done():
            call.answer.set_result(message)

    def fail(self, id: int, error: RametError) -> None:
        call = self._open.get(id)
        if call is not None and not call.answer.done():
            call.answer.set_exception(error)

    def fail_all(self, error: RametError) -> None:
        for id in list(self._open):
            self.fail(id, error)
