"""A scheduler, a worker core and the KV oracle in one thread: what the scheduler's tests play on.

The world delivers messages, counts terminal ones, and knows what every branch must say: the oracle's continuation of
its own ids, whatever was cached, batched, pushed back or killed on the way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.protocol.ids import pack_ids, unpack_ids
from ramet.runtime.protocol.messages import (
    Accepted,
    Cancel,
    Constraint,
    Control,
    ControlReply,
    Drop,
    Finished,
    Limits,
    Namespace,
    PromptLogprobs,
    Rejected,
    Release,
    RowStart,
    Sampling,
    Score,
    Scored,
    StepPlan,
    StepResult,
    Submit,
    TokenDelta,
    TokenLogprob,
    WorkerError,
)
from ramet.runtime.scheduler.core import Scheduler
from ramet.runtime.worker.core import WorkerCore
from ramet.runtime.worker.oracle import OracleRunner, PrefixHash, logits_of

CLIENT = b"client"


@dataclass
class Heard:
    """What a client heard of one choice."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    offset: int = -1
    cached: int = -1
    terminal: list[Any] = field(default_factory=list)

    @property
    def finished(self) -> Finished:
        assert len(self.terminal) == 1 and isinstance(self.terminal[0], Finished), self.terminal
        return self.terminal[0]


class World:
    """``step`` moves one plan: schedule as many as may stand at the worker, run the oldest, apply it."""

    def __init__(
        self, *, blocks: int = 64, vocab: int = 64, config: SchedulerConfig | None = None, device: bool = True
    ) -> None:
        self.config = config or SchedulerConfig(block_size=4, chunk_tokens=32, max_rows=8, check_invariants=True)
        self.blocks = blocks
        self.vocab = vocab
        self.scheduler = Scheduler(self.config)
        self.now = 0.0
        self.heard: dict[tuple[bytes, int, int], Heard] = {}
        self.accepted: set[tuple[bytes, int]] = set()
        self.rejected: dict[tuple[bytes, int], Rejected] = {}
        self.scored: dict[tuple[bytes, int], Scored] = {}
        self.replies: dict[int, bytes] = {}
        self.plans: list[StepPlan] = []
        self.starts: list[RowStart] = []
        self._sent: deque[StepPlan] = deque()
        self._ids = 0
        self._hash = PrefixHash()
        self.worker: WorkerCore | None = None
        if device:
            self.new_worker()

    # ------------------------------------------------------------ the worker

    def new_worker(self, blocks: int | None = None) -> None:
        """The worker dies, if there is one, with all its KV and all plans; another comes."""
        if self.worker is not None:
            self.worker.close()
        self._sent.clear()
        self.runner = OracleRunner(blocks or self.blocks, self.config.block_size, self.vocab)
        self.worker = WorkerCore(self.runner)
        self.take(self.scheduler.reset_device(self.runner.blocks, self.runner.block_size, "oracle", self.now))

    def schedule(self) -> bool:
        """Send one plan, if there is one to be sent."""
        planned = self.scheduler.schedule(self.now)
        self.take(self.scheduler.take_messages())
        if planned is None:
            return False
        before, plan = planned
        assert self.worker is not None
        for message in before:
            if isinstance(message, RowStart):
                self.starts.append(message)
                self._to_worker.append(message)
            elif isinstance(message, Drop | Constraint):
                self._to_worker.append(message)
        if plan is None:
            self._deliver()
            return False
        self.plans.append(plan)
        self._sent.append(plan)
        self._to_worker.append(plan)
        return True

    @property
    def _to_worker(self) -> deque[Any]:
        if not hasattr(self, "_wire"):
            self._wire: deque[Any] = deque()
        return self._wire

    def _deliver(self) -> StepResult | WorkerError | None:
        """The worker takes its messages up to and with the next plan."""
        assert self.worker is not None
        while self._to_worker:
            message = self._to_worker.popleft()
            if isinstance(message, RowStart):
                self.worker.start(message)
            elif isinstance(message, Drop):
                self.worker.drop(message.row)
            elif isinstance(message, Constraint):
                self.worker.constraint(message.key, message.spec)
            else:
                self._sent.popleft()
                return self.worker.step(message)
        return None

    def step(self) -> bool:
        """False if there was nothing to do."""
        while len(self._sent) < self.config.plan_depth and self.schedule():
            pass
        if not self._sent:
            return False
        result = self._deliver()
        assert result is not None
        self.now += 0.01
        self.take(self.scheduler.apply(result, self.now))
        return True

    def kill_worker(self) -> None:
        self._to_worker.clear()
        self.new_worker()

    def fail_step(self) -> bool:
        """The next step fails as a whole; its rows are forgotten by the worker."""
        while len(self._sent) < self.config.plan_depth and self.schedule():
            pass
        if not self._sent:
            return False
        assert self.worker is not None
        while not isinstance(self._to_worker[0], StepPlan):
            message = self._to_worker.popleft()
            if isinstance(message, RowStart):
                self.worker.start(message)
            elif isinstance(message, Drop):
                self.worker.drop(message.row)
        plan = self._to_worker.popleft()
        self._sent.popleft()
        for row in plan.rows:
            self.worker.drop(row.row)
        rows = tuple(row.row for row in plan.rows)
        self.take(self.scheduler.apply(WorkerError(plan.step, rows, "planned failure"), self.now))
        return True

    def run(self, limit: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"still busy after {limit} steps")

    # ------------------------------------------------------------ the client

    def submit(
        self,
        ids: list[int],
        max_tokens: int = 8,
        *,
        client: bytes = CLIENT,
        parent: tuple[tuple[int, int], int] | None = None,
        n_prompt: int | None = None,
        temperature: float = 0.0,
        key: int = 0,
        tenant: str = "",
        id: int | None = None,
        **fields: Any,
    ) -> int:
        if id is None:
            self._ids += 1
            id = self._ids
        total = len(ids) + (parent[1] if parent else 0)
        message = Submit(
            id,
            pack_ids(ids),
            total if n_prompt is None else n_prompt,
            Sampling(temperature=temperature, key=key),
            Limits(max_tokens),
            parent=parent,
            namespace=Namespace(tenant),
            **fields,
        )
        self.take(self.scheduler.submit(client, message, self.now))
        return id

    def score(self, ids: list[int], continuations: list[list[int]], *, client: bytes = CLIENT, **fields: Any) -> int:
        self._ids += 1
        message = Score(self._ids, pack_ids(ids), tuple(pack_ids(c) for c in continuations), **fields)
        self.take(self.scheduler.submit(client, message, self.now))
        return self._ids

    def cancel(self, id: int, client: bytes = CLIENT) -> None:
        self.take(self.scheduler.cancel(client, Cancel(id), self.now))

    def release(self, id: int, choice: int = 0, client: bytes = CLIENT) -> None:
        self.take(self.scheduler.release(client, Release((id, choice)), self.now))

    def control(self, op: str, argument: str = "") -> Any:
        import json

        self._ids += 1
        self.take(self.scheduler.control(CLIENT, Control(self._ids, op, argument), self.now))
        return json.loads(self.replies[self._ids])

    def stats(self) -> Any:
        return self.control("stats")

    def of(self, id: int, choice: int = 0, client: bytes = CLIENT) -> Heard:
        return self.heard.setdefault((client, id, choice), Heard())

    def take(self, out: list[tuple[bytes, Any]]) -> None:
        for client, message in out:
            if isinstance(message, Accepted):
                self.accepted.add((client, message.id))
            elif isinstance(message, Rejected):
                assert (client, message.id) not in self.accepted, "refused after it was accepted"
                self.rejected[client, message.id] = message
            elif isinstance(message, TokenDelta):
                heard = self.of(message.id, message.choice, client)
                assert not heard.terminal, "ids after the end"
                ids = unpack_ids(message.ids)
                assert len(message.forced) == len(ids)
                if heard.offset < 0:
                    heard.offset = message.offset
                assert message.offset == heard.offset + len(heard.ids), "a gap in the stream"
                heard.ids += ids
                heard.logprobs += message.logprobs or ()
                heard.cached = message.cached_tokens
            elif isinstance(message, PromptLogprobs):
                self.of(message.id, message.choice, client).prompt_logprobs += message.logprobs
            elif isinstance(message, Finished):
                heard = self.of(message.id, message.choice, client)
                assert not heard.terminal, "two terminal messages"
                heard.terminal.append(message)
            elif isinstance(message, Scored):
                heard = self.of(message.id, 0, client)
                assert not heard.terminal, "two terminal messages"
                heard.terminal.append(message)
                self.scored[client, message.id] = message
            elif isinstance(message, ControlReply):
                self.replies[message.call_id] = message.data

    # ------------------------------------------------------------ the truth

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """What the oracle says after ``ids``, by definition: no blocks, no scheduler."""
        ids = list(ids)
        for _ in range(count):
            prefix = np.array([self._hash.after(ids)], np.uint64)
            ids.append(int(logits_of(prefix, self.vocab, (self.vocab - 1,))[0].argmax()))
        return ids[-count:] if count else []
