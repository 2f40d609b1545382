"""The asyncio core of every frontend: owns each request from its acceptance to its terminal event.

It allots ids, draws seeds, turns ids into text, and keeps what is needed to make a scheduler's death invisible: when
one with a new epoch answers, every open request is sent again with all its ids, and its stream goes on.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from ramet.runtime.protocol.errors import (
    ConstraintError,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RametError,
    RequestTimeout,
    Unavailable,
)
from ramet.runtime.protocol.ids import pack_ids
from ramet.runtime.protocol.messages import (
    FRONTEND_GONE,
    Accepted,
    BranchRef,
    Cancel,
    Constraint,
    Control,
    ControlReply,
    Finished,
    PromptLogprobs,
    Rejected,
    Score,
    Scored,
    TokenDelta,
    Usage,
)
from ramet.runtime.protocol.transport import MessageTooLarge

from .blocking import off_loop
from .branches import Branches
from .calls import GRACE_S, Calls
from .choice import Choice, OffsetGap
from .compile_check import BoundedCompile, Compile, CompileCheck, constraint_key
from .detokenizer import TokenTable, spell
from .generation import Generation, OpenRequest, Timing
from .holdback import stops_of
from .link import Link, log
from .requests import (
    ChoiceResult,
    Chunk,
    Finish,
    GenerateRequest,
    ScoreRequest,
    ScoreResult,
    check_request,
    check_score,
    limits_of,
    refusal,
    too_long,
)
from .submission import Submission

__all__ = ["ChoiceResult", "Chunk", "Client", "Finish", "GenerateRequest", "Generation", "ScoreRequest", "ScoreResult"]

RETRY_S = 0.25


class Client:
    """Used from the thread of one event loop alone. ``start`` first; ``close`` cancels what is still open.

    ``context``: longest branch in tokens; None: asked of the scheduler (``stats``). ``compile``: compiles a constraint
    or raises; None: in a child, under limits of time and memory. ``lost_s``: after so many seconds without
    a word from any scheduler, open requests fail.
    """

    def __init__(
        self,
        endpoint: str,
        tokenizer: TokenTable,
        *,
        context: int | None = None,
        compile: Compile | None = None,
        max_compiling: int | None = None,
        lost_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokenizer = tokenizer
        self.context = context or 0
        self._table: Sequence[bytes] = tokenizer.token_table
        self._vocab_size = tokenizer.vocab_size
        self._clock = clock
        self._lost_s = lost_s
        self._link = Link(endpoint, self, clock)
        self._bounded = BoundedCompile(tokenizer)
        self._constraints = CompileCheck(compile or self._bounded, waiting=max_compiling)
        self._open: dict[int, OpenRequest] = {}
        self._calls = Calls(self._link.send)
        self._branches = Branches()
        self._submission = Submission(self._link, self._branches, clock, self._constraints.for_worker)
        self._observe: Callable[[Timing], None] | None = None
        self._last_id = 0
        self._closed = False
        self._asking = False
        self.gone = ""
        """Why nothing is generated any more (see ``give_up``); empty while all is well."""

    async def start(self, timeout_s: float = 60.0) -> None:
        """Connects. Raises GenerationFailed if no scheduler answers in time; nothing is left open then."""
        try:
            await self._link.start()
            await self._link.ready(timeout_s)
            if not self.context:
                self.context = int((await self.control("stats")).get("context", 0))
        except BaseException:  # a socket that nobody closes hangs the collector, and so the process
            await self.close()
            raise

    async def close(self) -> None:
        """Cancels what is open (its consumers see ``cancelled``) and hangs up."""
        self._closed = True
        for state in list(self._open.values()):
            self.cancel(state)
            state.end_all(Finish("cancelled", Usage(), message="the client was closed"))
            self._settle(state)
        self._calls.fail_all(GenerationFailed("the client was closed"))
        await self._link.close()
        await off_loop(self._bounded.close)

    def observe(self, ended: Callable[[Timing], None]) -> None:
        """``ended`` is called in the loop with each request that has ended, however it did."""
        self._observe = ended

    @property
    def connected(self) -> bool:
        return self._link.known

    @property
    def fingerprint(self) -> str:
        return self._link.hello.fingerprint if self._link.hello else ""

    @property
    def open_requests(self) -> int:
        return len(self._open)

    # ------------------------------------------------------------ generate

    def generate(self, request: GenerateRequest) -> Generation:
        """Raises InvalidRequest at once for what can be seen here; refusals that take longer (constraints, admission)
        are raised by ``accepted``, iteration and ``result``."""
        self._check_open()
        check_request(request, self._vocab_size)
        prompt = self._branches.ids(request.parent, request.ids)
        limits = limits_of(request, len(prompt), self.context)
        seed = secrets.randbits(63) if request.seed is None else request.seed
        key = constraint_key(request.constraint) if request.constraint is not None else ""
        stops = stops_of([stop.encode("utf-8") for stop in request.stop])
        id = self._allot()
        shown = self._shown_stops(request) if request.include_stop else None
        choices = [
            Choice((id, index), prompt, self._table, stops, request.logprobs >= 0, shown=shown)
            for index in range(request.n)
        ]
        deadline = None if request.timeout_s is None else self._clock() + request.timeout_s
        state = OpenRequest(id, request, prompt, choices, request.sampling(seed), limits, key, deadline, self._clock())
        self._open[id] = state
        if len(self._open) == 1:
            self._link.nudge()
        for choice in choices:
            self._branches.add(choice)
        if request.timeout_s is not None:
            loop = asyncio.get_running_loop()
            state.timer = loop.call_later(request.timeout_s + GRACE_S, self._timed_out, state)
        if state.ready or self._constraints.passed(key):
            state.ready = True
            self._submission.first(state)
        else:
            state.task = asyncio.create_task(self._compile_then_submit(state))
        return Generation(state, self.cancel)

    def cancel(self, state: OpenRequest) -> None:
        """Idempotent. Terminal events come from the scheduler, or from here if it was never told. Nobody will fork its
        branches: also those of choices that have ended go."""
        if state.done or state.cancelled:
            return
        state.cancelled = True
        state.kept = [False] * len(state.kept)
        self._settle(state)
        if state.submitted and self._link.known:
            self._link.send(Cancel(state.id))
        else:
            state.end_all(Finish("cancelled", Usage()))
            self._settle(state)

    def release(self, branch: BranchRef) -> None:
        """The branch will not be forked any more. Idempotent; a branch that still runs goes on to its end."""
        state = self._open.get(branch[0])
        if state is not None and state.choices[branch[1]].finish is None:
            state.kept[branch[1]] = False
            return
        self._submission.let_go(branch)

    async def compile(self, spec: Any) -> None:
        """Raises the ConstraintError of ``spec``, if it has one: the check that every request's constraint passes."""
        await self._constraints.check(constraint_key(spec), spec)

    def warm(self) -> None:
        """Get ready to compile constraints, in the background, so that the first one does not wait for it."""
        self._bounded.warm()

    # ------------------------------------------------------------ score, control

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Raises InvalidRequest, Overloaded, RequestTimeout or GenerationFailed."""
        self._check_open()
        check_score(request, self._vocab_size)
        context = self._branches.ids(request.parent, request.ids)
        if not context:
            raise InvalidRequest("the context of a score holds no id", param="ids")
        longest = len(context) + max((len(ids) for ids in request.continuations), default=0)
        if self.context and longest > self.context:
            raise too_long(longest, self.context)
        id = self._allot()
        deadline = None if request.timeout_s is None else self._clock() + request.timeout_s

        def message(parent_allowed: bool) -> Score:
            parent = (
                request.parent
                if parent_allowed and request.parent and self._submission.knows(request.parent[0])
                else None
            )
            return Score(
                id,
                pack_ids(request.ids) if parent is not None else context.tobytes(),
                tuple(pack_ids(ids) for ids in request.continuations),
                parent,
                request.namespace,
                request.priority,
                -1 if deadline is None else max(1, round(1000 * (deadline - self._clock()))),
                request.logprobs,
            )

        try:
            scored: Scored = await self._calls.call(id, message, request.timeout_s)
        except (asyncio.CancelledError, RequestTimeout):
            self._link.send(Cancel(id))
            raise
        return ScoreResult(scored.logprobs, scored.usage)

    async def control(self, op: str, argument: str = "", *, timeout_s: float | None = None) -> dict[str, Any]:
        """``op``: stats, flush, drain, tree, events. Returns the scheduler's JSON reply."""
        self._check_open()
        id = self._allot()
        reply: ControlReply = await self._calls.call(id, lambda _: Control(id, op, argument), timeout_s)
        data: dict[str, Any] = json.loads(reply.data) if reply.data else {}
        return data

    # ------------------------------------------------------------ sending requests

    async def _compile_then_submit(self, state: OpenRequest) -> None:
        spec = state.request.constraint
        assert spec is not None
        try:
            await self._constraints.check(state.constraint_key, spec)
        except (ConstraintError, Overloaded) as error:
            self._fail(state, error)
        except Exception as error:  # the compiler is not ours: whatever it raises ends this request alone
            log.exception("compiling a constraint failed")
            self._fail(state, GenerationFailed(f"compiling the constraint failed: {error}"))
        else:
            state.ready = True
            if not state.done:
                self._submission.first(state)

    # ------------------------------------------------------------ Receiver of the link

    @property
    def busy(self) -> bool:
        return bool(self._open or self._calls)

    def resync(self) -> None:
        self._submission.forget()
        for state in list(self._open.values()):
            if state.cancelled:
                state.end_all(Finish("cancelled", Usage()))
                self._settle(state)
            else:
                self._submission.again(state)
        self._calls.send_all()

    def _ask_again(self) -> None:
        """The scheduler took us for dead: once for all that it says so of."""
        if not self._asking:
            self._asking = True
            asyncio.get_running_loop().call_soon(self._asked_again)

    def _asked_again(self) -> None:
        self._asking = False
        if self._link.known and not self._closed:
            self.resync()

    def unsent(self, message: Any, error: Exception) -> None:
        known = error if isinstance(error, MessageTooLarge) else None
        reason = InvalidRequest(str(known or f"the request cannot be sent: {type(error).__name__}: {error}"))
        log.warning("%s could not be sent: %s", type(message).__name__, error)
        for state in list(self._open.values()):
            if state.id == getattr(message, "id", -1) or (
                isinstance(message, Constraint) and state.constraint_key == message.key
            ):
                self._fail(state, reason)
        self._calls.fail(getattr(message, "call_id", getattr(message, "id", -1)), reason)

    def lost(self, seconds: float) -> None:
        if seconds < self._lost_s or not self.busy:
            return
        self._fail_all(GenerationFailed(f"the scheduler has not answered for {seconds:.0f} s"))

    def give_up(self, reason: str) -> None:
        """The runtime is gone for good: what is open, and what comes from now on, ends with Unavailable."""
        self.gone = reason or "the runtime has ended"
        self._fail_all(Unavailable(self.gone))

    def _fail_all(self, error: RametError) -> None:
        for state in list(self._open.values()):
            self._fail(state, error)
        self._calls.fail_all(error)

    def message(self, message: Any) -> None:
        try:
            self._take(message)
        except Exception as error:  # a fault of ours, or of the scheduler's: it ends its request, and no other one
            log.exception("message of the scheduler could not be handled: %r", message)
            state = self._open.get(getattr(message, "id", -1))
            if state is not None:
                self._link.send(Cancel(state.id))
                self._fail(state, GenerationFailed(f"a message of the scheduler could not be handled: {error}"))

    def _take(self, message: Any) -> None:
        kind = type(message)
        if kind is TokenDelta:
            state = self._open.get(message.id)
            if state is not None:
                self._delta(state, message)
        elif kind is Finished:
            state = self._open.get(message.id)
            if state is not None:
                self._finished(state, message)
            elif message.message == FRONTEND_GONE:
                self._ask_again()
            else:  # a score that could not be computed
                why = message.message or f"it ended with {message.reason!r}"
                self._calls.fail(message.id, GenerationFailed(f"the score failed: {why}"))
        elif kind is Accepted:
            state = self._open.get(message.id)
            if state is not None:
                state.accept()
        elif kind is PromptLogprobs:
            state = self._open.get(message.id)
            if state is not None:
                state.choices[message.choice].prompt(message)
        elif kind is Rejected:
            self._rejected(message)
        elif kind is Scored:
            self._calls.answered(message.id, message)
        elif kind is ControlReply:
            self._calls.answered(message.call_id, message)

    def _delta(self, state: OpenRequest, message: TokenDelta) -> None:
        choice = state.choices[message.choice]
        if choice.finish is not None:
            return
        if state.first is None:
            state.first = self._clock()
        try:
            state.push(choice.delta(message))
        except OffsetGap as gap:
            self._link.send(Cancel(state.id))
            self._fail(state, GenerationFailed(f"the stream broke: {gap}"))

    def _finished(self, state: OpenRequest, message: Finished) -> None:
        choice = state.choices[message.choice]
        if choice.finish is not None:
            return
        state.accepted = True
        if message.reason == "cancelled" and message.message.startswith("timeout"):
            self._fail(state, RequestTimeout(message.message))
            return
        if message.message == FRONTEND_GONE and not state.cancelled:
            self._ask_again()
            return
        if message.reason in ("cancelled", "error"):
            state.kept[choice.index] = False  # no caller forks what failed, and the scheduler keeps it until told
        state.push(choice.finished(message))
        self._settle(state)

    def _rejected(self, message: Rejected) -> None:
        state = self._open.get(message.id)
        if state is None:
            if message.code == "unknown_branch" and message.id in self._calls:
                self._calls.send_in_full(message.id)
            else:
                self._calls.fail(message.id, refusal(message))
        elif state.cancelled:
            state.end_all(Finish("cancelled", Usage()))
            self._settle(state)
        elif message.code == "unknown_constraint" and self._submission.with_spec(state):
            pass  # it was sent long ago, and the scheduler's memory for constraints is bounded
        elif message.code == "unknown_branch" and state.with_parent:
            # The parent ended, or went with an older epoch, while the Submit was under way; we know its ids.
            self._submission.first(state, parent_allowed=False)
        elif message.code == "queue_full" and state.accepted:
            # It was accepted once, by a scheduler that died: the client of this request must not see it refused.
            asyncio.get_running_loop().call_later(RETRY_S, self._submission.again, state)
        else:
            if state.accepted:  # of several choices that were sent again, the others may run
                self._link.send(Cancel(state.id))
            self._fail(state, refusal(message))

    # ------------------------------------------------------------ ends

    def _timed_out(self, state: OpenRequest) -> None:
        if not state.done:
            if state.submitted:
                self._link.send(Cancel(state.id))
            self._fail(state, RequestTimeout(f"the request did not end within {state.request.timeout_s:g} s"))

    def _fail(self, state: OpenRequest, error: RametError) -> None:
        if not state.done:
            state.kept = [False] * len(state.kept)
            state.fail(error)
            self._settle(state)

    def _settle(self, state: OpenRequest) -> None:
        """After a terminal event: drop what nobody may ask for any more."""
        for choice in state.choices:
            if choice.finish is not None and not state.kept[choice.index] and choice.branch in self._branches:
                if state.request.keep:
                    self._submission.let_go(choice.branch)
                else:
                    self._branches.forget(choice.branch)
        if state.done:
            self._open.pop(state.id, None)
            if self._observe is not None:
                self._observe(Timing.of(state, self._clock()))
            if state.timer is not None:
                state.timer.cancel()

    def _shown_stops(self, request: GenerateRequest) -> dict[int, bytes]:
        shown = {index: stop.encode() for index, stop in enumerate(request.stop)}
        return shown | {-1 - index: spell(self._table, [token]) for index, token in enumerate(request.stop_ids)}

    def _allot(self) -> int:
        self._last_id += 1
        return self._last_id

    def _check_open(self) -> None:
        if self._closed:
            raise GenerationFailed("the client is closed")
        if self.gone:
            raise Unavailable(self.gone)
