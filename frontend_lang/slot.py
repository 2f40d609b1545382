"""Variables: a slot is made when a call is appended, and resolved when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from .errors import cut_value
from .where import UNKNOWN, Where

Value = Any
"""str, or a list where n > 1 or after a join; anything for variables that the user sets."""


class Waiters:
    """Wakes every coroutine that waits for a change. Loop thread only."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] | None = None

    def wake(self) -> None:
        futures, self._futures = self._futures, None
        for future in futures or ():
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        if self._futures is None:
            self._futures = []
        self._futures.append(future)
        await future


class TextLog:
    """Text that grows; any number of readers, each from its own place. Written on the loop thread only."""

    __slots__ = ("_waiters", "ended", "parts")

    def __init__(self, text: str = "") -> None:
        self.parts: list[str] = [text] if text else []
        self.ended = False
        self._waiters = Waiters()

    def append(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self._waiters.wake()

    def end(self) -> None:
        self.ended = True
        self._waiters.wake()

    def text(self) -> str:
        if len(self.parts) > 1:
            joined = "".join(self.parts)
            return joined
        return self.parts[0] if self.parts else ""

    async def read(self, start: int) -> tuple[str, int]:
        """(the text from part ``start`` on, next start); waits for some; ("", start) at the end."""
        while start >= len(self.parts) and not self.ended:
            await self._waiters.wait()
        end = len(self.parts)
        return "".join(self.parts[start:end]), end


class Slot(Protocol):
    """What a name stands for."""

    where: Where

    @property
    def done(self) -> bool: ...
    async def wait(self) -> None: ...
    def value(self) -> Value:
        """The value; raises the error of the call. Only when done."""

    def typed(self) -> Any:
        """The parsed value."""

    def meta(self) -> Any: ...


class CallSlot:
    """The variable of one call. ``stream`` is its text as it arrives (choice 0 where n > 1)."""

    __slots__ = (
        "_error",
        "_make_meta",
        "_meta",
        "_value",
        "_waiters",
        "done",
        "logprobs",
        "name",
        "parse",
        "stream",
        "where",
    )

    def __init__(self, name: str | None, where: Where = UNKNOWN, parse: Callable[[str], Any] | None = None) -> None:
        self.name = name
        self.where = where
        self.parse = parse
        self.done = False
        self.stream = TextLog()
        self.logprobs: list[tuple[int, Any]] | None = None
        """(part of the stream, log-probabilities that came with it), of the parts that have some."""
        self._value: Value = None
        self._meta: Any = None
        self._make_meta: Callable[[], Any] | None = None
        self._error: Exception | None = None
        self._waiters = Waiters()

    def resolve(self, value: Value, meta: Any = None, make_meta: Callable[[], Any] | None = None) -> None:
        """``make_meta``: makes the meta information when somebody asks for it, in place of ``meta``."""
        self._value, self._meta, self._make_meta = value, meta, make_meta
        self._finish()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.stream.end()
        self._waiters.wake()

    @property
    def error(self) -> Exception | None:
        return self._error

    async def wait(self) -> None:
        while not self.done:
            await self._waiters.wait()

    def value(self) -> Value:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value

    def typed(self) -> Any:
        value = self.value()
        if self.parse is None:
            return value
        if isinstance(value, list):
            return [self._parsed(text, meta) for text, meta in zip(value, self.meta(), strict=True)]
        return self._parsed(value, self.meta())

    def _parsed(self, text: str, meta: Any) -> Any:
        assert self.parse is not None
        try:
            return self.parse(text)
        except ValueError as error:
            if not isinstance(meta, dict) or meta["finish_reason"]["type"] != "length":
                raise
            raise cut_value(self.name, self.where, meta["completion_tokens"], error) from error

    def meta(self) -> Any:
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._make_meta is not None:
            self._meta, self._make_meta = self._make_meta(), None
        return self._meta


class SetSlot:
    """A variable that the user set: there at once."""

    __slots__ = ("_value", "stream", "where")
    done = True

    def __init__(self, value: Value, where: Where = UNKNOWN) -> None:
        self._value = value
        self.where = where
        self.stream = TextLog(value if isinstance(value, str) else "")
        self.stream.ended = True

    async def wait(self) -> None:
        return

    def value(self) -> Value:
        return self._value

    def typed(self) -> Any:
        return self._value

    def meta(self) -> Any:
        return None


class DerivedSlot:
    """A variable that a compiled body sets, made of others."""

    __slots__ = ("_done", "_made", "_make", "_parts", "stream", "where")

    def __init__(self, parts: list[Slot], make: Callable[[], Value], where: Where = UNKNOWN) -> None:
        self._parts, self._make = parts, make
        self._done = False
        self._made: tuple[Value, ...] = ()
        self.where = where
        self.stream = TextLog()
        self.stream.ended = True

    @property
    def done(self) -> bool:
        # Remembered, as is the value: parts may be made of parts, each named several times.
        self._done = self._done or all(part.done for part in self._parts)
        return self._done

    async def wait(self) -> None:
        for part in self._parts:
            if not part.done:
                await part.wait()

    def value(self) -> Value:
        if not self._made:
            self._made = (self._make(),)
        return self._made[0]

    typed = value

    def meta(self) -> Any:
        return None


class JoinedSlot:
    """A variable of several branches, in their order; None for a branch that does not have it."""

    __slots__ = ("slots", "where")

    def __init__(self, slots: list[Slot | None], where: Where = UNKNOWN) -> None:
        self.slots = slots
        self.where = where

    @property
    def done(self) -> bool:
        return all(slot is None or slot.done for slot in self.slots)

    async def wait(self) -> None:
        for slot in self.slots:
            if slot is not None:
                await slot.wait()

    def value(self) -> Value:
        return [None if slot is None else slot.value() for slot in self.slots]

    def typed(self) -> Any:
        return [None if slot is None else slot.typed() for slot in self.slots]

    def meta(self) -> Any:
        return [None if slot is None else slot.meta() for slot in self.slots]
