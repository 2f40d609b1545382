"""One open request inside the client, and the handle that its caller holds."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramet.runtime.protocol.errors import GenerationFailed, RametError
from ramet.runtime.protocol.ids import pack_ids
from ramet.runtime.protocol.messages import BranchRef, Limits, Sampling, Stops, Submit, TokenLogprob, Usage
from ramet.runtime.protocol.randomness import choice_key

from .choice import Choice
from .requests import ChoiceResult, Chunk, Finish, GenerateRequest


class OpenRequest:
    """From acceptance by the client to the terminal event of its last choice."""

    def __init__(
        self,
        id: int,
        request: GenerateRequest,
        prompt: array[int],
        choices: list[Choice],
        sampling: Sampling,
        limits: Limits,
        constraint_key: str,
        deadline: float | None,
        began: float,
    ) -> None:
        self.id = id
        self.began = began
        self.first: float | None = None
        """When the first ids came, by the client's clock."""
        self.request = request
        self.prompt = prompt
        self.choices = choices
        self.sampling = sampling
        self.limits = limits
        self.stops = Stops(
            tuple(stop.encode("utf-8") for stop in request.stop), request.stop_ids, ignore_end=request.ignore_eos
        )
        self.constraint_key = constraint_key
        self.deadline = deadline
        self.kept = [request.keep] * len(choices)
        self.unfinished = len(choices)
        self.ready = not constraint_key
        """The constraint has compiled: may be submitted."""
        self.submitted = False
        self.with_parent = False
        self.cancelled = False
        self.accepted = False
        self.error: RametError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.chunks: deque[Chunk] = deque()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def done(self) -> bool:
        return self.unfinished == 0

    # ------------------------------------------------------------ messages

    def submit(self, parent: tuple[BranchRef, int] | None, now: float) -> Submit:
        """The first Submit of the request: all its choices in one."""
        request = self.request
        return Submit(
            id=self.id,
            ids=pack_ids(request.ids) if parent is not None else self.prompt.tobytes(),
            n_prompt=len(self.prompt),
            sampling=self.sampling,
            limits=self.limits,
            stops=self.stops,
            parent=parent,
            logits_from=request.logits_from,
            logprobs=request.logprobs,
            constraint_key=self.constraint_key,
            namespace=request.namespace,
            priority=request.priority,
            remaining_ms=self.remaining_ms(now),
            keep=request.keep,
            fan_out=request.fan_out,
            n=request.n,
        )

    def resubmit(self, choice: Choice, now: float) -> Submit:
        """One choice with all it has generated, for a scheduler that knows nothing of it."""
        request, several = self.request, len(self.choices) > 1
        sampling = self.sampling
        if choice.index:
            sampling = _with_key(sampling, choice_key(sampling.key, choice.index))
        logits_from = request.logits_from
        if logits_from >= 0 and (choice.prompt_logprobs or choice.index):
            logits_from = max(logits_from, choice.prompt_logprobs_from - 1) + len(choice.prompt_logprobs)
            if choice.index or logits_from >= choice.n_prompt - 1:
                logits_from = -1
        return Submit(
            id=self.id,
            ids=choice.ids.tobytes(),
            n_prompt=choice.n_prompt,
            sampling=sampling,
            limits=self.limits,
            stops=self.stops,
            logits_from=logits_from,
            logprobs=request.logprobs,
            constraint_key=self.constraint_key,
            namespace=request.namespace,
            priority=request.priority,
            remaining_ms=self.remaining_ms(now),
            keep=self.kept[choice.index],
            fan_out=request.fan_out,
            choice=choice.index if several else -1,
            forced=bytes(choice.forced),
            usage=choice.usage_so_far(),
        )

    def remaining_ms(self, now: float) -> int:
        return -1 if self.deadline is None else max(1, round(1000 * (self.deadline - now)))

    # ------------------------------------------------------------ events

    def push(self, chunk: Chunk | None) -> None:
        if chunk is None:
            return
        if chunk.finish is not None:
            self.unfinished -= 1
        self.chunks.append(chunk)
        self._notify()

    def accept(self) -> None:
        self.accepted = True
        self._notify()

    def end_all(self, finish: Finish) -> None:
        """Ends the choices that still run, on our own account; ``finish.usage`` is replaced by what was counted."""
        for choice in self.choices:
            if choice.finish is None:
                usage = choice.usage_so_far() or Usage()
                self.push(choice.end(Finish(finish.reason, usage, finish.stop, finish.message)))

    def fail(self, error: RametError) -> None:
        """Terminal for the whole request: iterators and ``result`` raise ``error``."""
        self.error = error
        for choice in self.choices:
            if choice.finish is None:
                choice.end(Finish("error", choice.usage_so_far() or Usage(), message=str(error)))
        self.unfinished = 0
        self._notify()

    async def changed(self) -> None:
        """Returns at the next event."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


@dataclass(frozen=True)
class Timing:
    """How long a request took. Seconds; ``first_s``: until the first ids came, None if none came."""

    first_s: float | None
    total_s: float
    usages: tuple[Usage, ...]
    reasons: tuple[str, ...]
    """Why each choice ended."""

    @staticmethod
    def of(state: OpenRequest, now: float) -> Timing:
        ends = [choice.finish for choice in state.choices if choice.finish is not None]
        first = None if state.first is None else state.first - state.began
        usages, reasons = tuple(end.usage for end in ends), tuple(end.reason for end in ends)
        return Timing(first, now - state.began, usages, reasons)


class Generation:
    """An async iterator of chunks over all choices, and ``result``. The request is cancelled when a task that waits
    here is cancelled, and when the handle is dropped."""

    def __init__(self, state: OpenRequest, cancel: Callable[[OpenRequest], None]) -> None:
        self._state = state
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()

    @property
    def id(self) -> int:
        return self._state.id

    @property
    def branches(self) -> tuple[BranchRef, ...]:
        """The branch of each choice."""
        return tuple(choice.branch for choice in self._state.choices)

    @property
    def branch(self) -> BranchRef:
        """The branch of choice 0."""
        return self._state.choices[0].branch

    @property
    def request(self) -> GenerateRequest:
        return self._state.request

    @property
    def n_prompt(self) -> int:
        return len(self._state.prompt)

    @property
    def prompt_ids(self) -> list[int]:
        return self._state.prompt.tolist()

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, known from the first ids on (0 before)."""
        return max(0, self._state.choices[0].cached)

    def usages(self) -> list[Usage]:
        """Of each choice so far; what follows the admission is not counted before it."""
        first = Usage(prompt=len(self._state.prompt))
        return [choice.usage_so_far() or (first if choice.index == 0 else Usage()) for choice in self._state.choices]

    def prompt_logprobs(self, choice: int = 0) -> list[TokenLogprob]:
        """As far as known; complete with the first ids of the choice. Choices that were given none have those of
        choice 0: the prompt is the same."""
        choices = self._state.choices
        return choices[choice].prompt_logprobs or choices[0].prompt_logprobs

    def cancel(self) -> None:
        """Idempotent. The choices that still run end with ``cancelled``."""
        self._cancel(self._state)

    async def accepted(self) -> None:
        """Returns when the scheduler has accepted the request; raises why it was refused."""
        state = self._state
        while not state.accepted and not state.done:
            await self._changed()
        if state.error is not None and not state.accepted:
            raise state.error

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Chunk:
        state = self._state
        while not state.chunks:
            self._raise()
            if state.done:
                raise StopAsyncIteration
            await self._changed()
        return state.chunks.popleft()

    async def batch(self) -> list[Chunk]:
        """All chunks that are there, waiting for one at least; empty at the end."""
        state = self._state
        while not state.chunks:
            self._raise()
            if state.done:
                return []
            await self._changed()
        chunks = list(state.chunks)
        state.chunks.clear()
        return chunks

    async def result(self) -> list[ChoiceResult]:
        """All choices, finished. Raises the refusal, or GenerationFailed if one ended with an error."""
        state = self._state
        while not state.done:
            await self._changed()
        self._raise()
        results = [choice.result() for choice in state.choices]
        for result in results:
            if result.finish_reason == "error":
                raise GenerationFailed(result.message or "the generation failed")
        return results

    def partial(self, choice: int = 0) -> tuple[str, list[int]]:
        """(text handed out, ids generated) so far."""
        state = self._state.choices[choice]
        return state.text, state.ids[state.n_prompt :].tolist()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if state is not None and not state.done and not self._loop.is_closed():
            # The collector may run in any thread.
            self._loop.call_soon_threadsafe(self._cancel, state)

    def _raise(self) -> None:
        if self._state.error is not None:
            raise self._state.error

    async def _changed(self) -> None:
        try:
            await self._state.changed()
        except asyncio.CancelledError:
            self.cancel()
            raise


def _with_key(sampling: Sampling, key: int) -> Sampling:
    values: dict[str, Any] = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return Sampling(**{**values, "key": key})
