"""The scheduler: a pure function of its messages and an injected clock. No sockets, no tensors, no threads.

    submit / score / cancel / release ──► queue ──► schedule(now): the next plan ──► worker
                                                                                       │
    (client, message)…  ◄── apply(result, now) ◄───────────────────────────────────────┘

Every method returns, or leaves for ``take_messages``, what the frontends are to be told: pairs (client, message).
"""

from __future__ import annotations

import heapq
import math

from ramet.radix import CacheEvent, EventLog, Namespace
from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.protocol.messages import (
    FRONTEND_GONE,
    Cancel,
    Constraint,
    ConstraintFailed,
    Control,
    ControlReply,
    Release,
    Score,
    StepPlan,
    StepResult,
    Submit,
    ToFrontend,
    ToWorker,
    WorkerError,
)

from .books import Books
from .branch import Request, Row, State
from .control import answer
from .intake import Intake
from .lifecycle import Lifecycle
from .memory import Memory
from .planner import Planner
from .results import Results

Out = list[tuple[bytes, ToFrontend]]


class Scheduler:
    """``now`` arguments are seconds of one monotonic clock, whatever its origin."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.events = EventLog()
        self._books = Books(config)
        self._life = Lifecycle(self._books)
        self._intake = Intake(self._books)
        self._planner = Planner(self._books, self._life)
        self._results = Results(self._books, self._life)
        self._deadlines: list[tuple[float, int, bytes, int]] = []
        """Heap of (deadline, arrival, client, id)."""

    # ------------------------------------------------------------ the device

    def reset_device(self, blocks: int, block_size: int, fingerprint: str, now: float) -> Out:
        """A worker came, with an empty pool; if there was one before, it is gone with all its KV.

        Rows and waiters requeue in their old order; kept branches keep their ids and are rebuilt on next use.
        """
        self._lose_device("the worker died")
        self._books.memory = Memory(blocks, block_size, fingerprint, self.config, self.events)
        for branch in list(self._books.queue):
            if branch.length > self._books.memory.tokens:
                self._life.finish(
                    branch,
                    "error",
                    message=f"the prompt has {branch.length} tokens, the KV pool holds {self._books.memory.tokens}; "
                    "shorten it or give a larger --kv-tokens",
                )
        return self.take_messages()

    def lose_device(self, message: str, now: float) -> Out:
        """The worker is gone: nothing runs until the next ``reset_device``."""
        self._lose_device(message)
        return self.take_messages()

    def _lose_device(self, message: str) -> None:
        books, memory = self._books, self._books.memory
        if memory is None:
            return
        books.memory = None
        self.events.add(CacheEvent("cleared", Namespace()))
        books.to_worker.clear()
        books.constraints.new_worker()
        blamed = {id(row.branch): row.branch for flight in memory.flights for row in flight.rows}
        rows = [*books.running.values(), *books.returning.values()]
        books.running.clear()
        books.returning.clear()
        for row in rows:
            books.queue.wake(row, everybody=True)
            if row.branch.row is row and row.branch.state is State.RUNNING:
                self._life.requeue(row.branch)
        for branch in books.parked.values():
            branch.row = None
        books.parked.clear()
        if blamed:
            books.counters.crashes += 1
        for branch in blamed.values():
            if branch.state is not State.ENDED:
                self._results.blame(branch, message)

    @property
    def has_device(self) -> bool:
        return self._books.memory is not None

    # ------------------------------------------------------------ frontends

    def constraint(self, msg: Constraint) -> None:
        self._books.constraints.put(msg.key, msg.spec)

    def submit(self, client: bytes, msg: Submit | Score, now: float) -> Out:
        if isinstance(msg, Score):
            self._intake.score(client, msg, now)
        else:
            self._intake.submit(client, msg, now)
        request = self._books.requests.get((client, msg.id))
        if request is not None and request.deadline < math.inf:
            heapq.heappush(self._deadlines, (request.deadline, request.seq, client, msg.id))
            if len(self._deadlines) > 2 * len(self._books.requests) + 64:
                self._drop_stale_deadlines()
        return self.take_messages()

    def cancel(self, client: bytes, msg: Cancel, now: float) -> Out:
        request = self._books.requests.get((client, msg.id))
        if request is not None:
            self._life.finish_request(request, "cancelled")
        return self.take_messages()

    def release(self, client: bytes, msg: Release, now: float) -> Out:
        branch = self._books.branches.get((client, *msg.branch))
        if branch is not None:
            self._life.release(branch)
        return self.take_messages()

    def control(self, client: bytes, msg: Control, now: float) -> Out:
        self._books.emit(client, ControlReply(msg.call_id, answer(self._books, self.events, msg)))
        return self.take_messages()

    def forget_client(self, client: bytes, now: float) -> Out:
        """The frontend died: its requests are cancelled, its branches released."""
        books = self._books
        for request in [r for r in books.requests.values() if r.client == client]:
            self._life.finish_request(request, "cancelled", FRONTEND_GONE)
        for branch in [b for key, b in books.branches.items() if key[0] == client]:
            self._life.release(branch)
        books.forget_client(client)
        return self.take_messages()

    # ------------------------------------------------------------ steps

    def schedule(self, now: float) -> tuple[list[ToWorker], StepPlan | None] | None:
        """What goes to the worker now: messages, then a plan. None: nothing. Deadlines that passed end their requests
        (see ``take_messages``)."""
        self._books.now = now
        if self._books.memory is not None:
            self._books.memory.tree.advance(now)
        self._expire(now)
        planned = self._planner.plan()
        if self.config.check_invariants:
            self.check()
        if planned is not None:
            return planned
        if self._books.memory is not None and self._books.to_worker:
            before, self._books.to_worker = self._books.to_worker, []
            return before, None
        return None

    def apply(self, result: StepResult | WorkerError | ConstraintFailed, now: float) -> Out:
        self._books.now = now
        if isinstance(result, StepResult):
            self._results.take(result)
        elif isinstance(result, WorkerError):
            self._results.fail(result.step, result.message)
        else:
            self._fail_constraint(result)
        if self.config.check_invariants:
            self.check()
        return self.take_messages()

    def take_messages(self) -> Out:
        return self._books.take_outbox()

    # ------------------------------------------------------------ for the loop around it

    def wait_s(self, now: float) -> float:
        """Seconds until the next deadline, inf if there is none."""
        while self._deadlines and self._due() is None:
            heapq.heappop(self._deadlines)
        return max(self._deadlines[0][0] - now, 0.0) if self._deadlines else math.inf

    @property
    def busy(self) -> bool:
        """A plan is at the worker."""
        return self._books.memory is not None and bool(self._books.memory.flights)

    @property
    def open_requests(self) -> int:
        return len(self._books.requests)

    def check(self) -> None:
        """Raise if invariant 2 does not hold: debug mode and tests call it after every step."""
        books = self._books
        if books.memory is None:
            return
        rows: list[Row] = list(books.running.values())
        rows += [branch.row for branch in books.parked.values() if branch.row is not None]
        books.memory.check(rows)

    # ------------------------------------------------------------ inside

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            request = self._due()
            heapq.heappop(self._deadlines)
            if request is not None:
                message = f"timeout: the request's {request.deadline_ms} ms are over"
                self._life.finish_request(request, "cancelled", message)

    def _drop_stale_deadlines(self) -> None:
        """Most are of requests that have ended, which would stay until their time comes."""
        self._deadlines = [
            (request.deadline, request.seq, *key)
            for key, request in self._books.requests.items()
            if request.deadline < math.inf
        ]
        heapq.heapify(self._deadlines)

    def _due(self) -> Request | None:
        """The request whose deadline is the next, if it is still open."""
        _, seq, client, id = self._deadlines[0]
        request = self._books.requests.get((client, id))
        return request if request is not None and request.seq == seq else None

    def _fail_constraint(self, failed: ConstraintFailed) -> None:
        books = self._books
        books.constraints.failed(failed.key)
        for branch in list(books.branches.values()):
            if branch.constraint_key == failed.key and branch.state is not State.ENDED:
                self._life.finish(branch, "error", message=f"constraint {failed.kind}: {failed.message}")
