"""The state of an ``async def`` program: reading gives awaitables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from . import reading
from .expr import Appendable, Expr, Gen, Select
from .group import StateGroup
from .state import _StateBase

T = TypeVar("T")


class AsyncState(_StateBase[Any]):
    """Appending works as in :class:`State` and never waits; everything that is read is awaited:
    ``plan = await s["plan"]``."""

    @overload
    def __getitem__(self, name: str) -> Awaitable[Any]: ...
    @overload
    def __getitem__(self, name: Gen[T]) -> Awaitable[T]: ...
    @overload
    def __getitem__(self, name: Select) -> Awaitable[str]: ...
    def __getitem__(self, name: str | Expr) -> Awaitable[Any]:
        """Awaitable value of a variable; of a `gen` object: its typed value."""
        return self._read(name, typed=isinstance(name, Gen))

    async def _read(self, name: str | Expr, typed: bool) -> Any:
        slot = await self._core.run.backend.loop.join(reading.find_async(self._core, name))
        return slot.typed() if typed else slot.value()

    async def get_var(self, name: str) -> Any:
        return await self[name]

    async def parsed(self, name: str | Expr) -> Any:
        return await self._read(name, typed=True)

    async def get_meta_info(self, name: str | Expr) -> Any:
        slot = await self._core.run.backend.loop.join(reading.find_async(self._core, name))
        return slot.meta()

    async def sync(self) -> None:
        """Wait for everything appended so far; raises the state's error."""
        await self._core.run.backend.loop.join(self._core.settled())
        if self._core.error is not None:
            raise self._core.error.with_traceback(None)

    async def text(self) -> str:
        await self.sync()
        return self._core.log.text()

    async def messages(self) -> list[dict[str, str]]:
        await self.sync()
        return [dict(message) for message in self._core.messages]

    async def error(self) -> BaseException | None:
        """The first error so far; None if all is well."""
        await self._core.run.backend.loop.join(self._core.settled())
        return self._core.error

    def text_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """Text as it arrives (of one variable, or all)."""
        return reading.text_async_iter(self._core, var_name, return_meta_data)

    def fork(self, size: int = 1, position_ids_offset: object = None) -> AsyncGroup:
        """``size`` branches that go on from here, in parallel."""
        return AsyncGroup(self._core, [AsyncState(core, owner=True) for core in self._children(size)])

    @contextmanager
    def copy(self, position_ids_offset: object = None) -> Iterator[AsyncState]:
        """One branch to try something on; its variables come back as lists of length 1."""
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            group.join()


class AsyncGroup(StateGroup[AsyncState]):
    """`StateGroup` of an ``async def`` program."""

    def __iadd__(self, other: Appendable | Sequence[Appendable] | Callable[[int], Appendable]) -> AsyncGroup:
        self.append(other)
        return self

    async def gather(self, name: str, errors: str = "raise") -> list[Any]:
        """The variable of every branch, in order. ``errors="return"``: an exception stands where one failed."""
        values: list[Any] = []
        for state in self.states:
            try:
                values.append(await state[name])
            except Exception as error:
                if errors == "raise":
                    raise
                values.append(error)
        return values
