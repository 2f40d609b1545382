"""One prompt, one choice: what the endpoints in other servers' own shapes have in common."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import orjson
from ramet.runtime.frontend.detokenizer import Detokenizer
from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import ChoiceResult, Chunk, Finish
from ramet.runtime.protocol.errors import RametError
from starlette.requests import Request

from .errors import HttpError, translate
from .server import Server, failure, watcher, watching
from .sse import EventStream
from .visible import visible


class Single:
    """``params``: what the endpoint calls the prompt, and the field that a constraint came from."""

    def __init__(self, server: Server, generation: Generation, params: tuple[str, str | None]) -> None:
        self.server = server
        self.generation = generation
        self._params = params
        self._decoder = Detokenizer()
        self.began = time.perf_counter()
        self.first: float | None = None
        """When the first ids came."""

    async def result(self, request: Request) -> ChoiceResult:
        """Raises HttpError, also for a choice that failed."""
        async with watching(request, self.generation.cancel):
            try:
                while await self.generation.batch():
                    self._heard()
                (result,) = await self.generation.result()
            except RametError as error:
                raise self._translated(error) from error
        failed = failure(Finish(result.finish_reason, result.usage, result.stop, result.message))
        if failed is not None:
            raise failed
        return result

    async def stream(
        self, request: Request, write: Callable[[Chunk], Iterable[Any]], headers: dict[str, str]
    ) -> EventStream:
        """Events of what ``write`` makes of each chunk. Raises HttpError before the first byte."""
        watch = watcher(request, self.generation.cancel)
        try:
            await self.generation.accepted()
        except RametError as error:
            watch.cancel()
            raise self._translated(error) from error

        async def events() -> AsyncIterator[bytes]:
            try:
                while chunks := await self.generation.batch():
                    self._heard()
                    for chunk in chunks:
                        failed = failure(chunk.finish) if chunk.finish is not None else None
                        if failed is not None:
                            yield _event(failed.body())
                            return
                        yield b"".join(map(_event, write(chunk)))
            except RametError as error:
                yield _event(self._translated(error).body())
            finally:
                watch.cancel()
                self.generation.cancel()

        return EventStream(events(), headers)

    def _heard(self) -> None:
        if self.first is None:
            self.first = time.perf_counter()

    def shown(self, chunk: Chunk) -> int:
        """How many of the chunk's ids belong to the text."""
        stop = chunk.finish.stop if chunk.finish is not None else None
        return max(0, visible(chunk.ids, chunk.offset, stop, with_stop=self.generation.request.include_stop))

    def token_text(self, token: int) -> str:
        """What the token adds to the text, bytes of half characters kept for the next one."""
        return self._decoder.feed(self.server.token_names.bytes(token))

    def _translated(self, error: RametError) -> HttpError:
        prompt, constraint = self._params
        return translate(error, prompt_param=prompt, constraint_param=constraint)


def _event(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
