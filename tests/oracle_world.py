"""A scheduler, a worker core and the KV oracle in one thread: what the scheduler's tests play on.

The world delivers messages, counts terminal ones, and knows what every branch must say: the oracle's continuation of
its own ids, whatever was cached, batched, pushed back or killed on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from ramet.kernels import sampling
from ramet.kernels.ops import SampleBatch
from ramet.radix.blocks import PRIVATE
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
    Submit,
    TokenDelta,
    TokenLogprob,
    Usage,
    WorkerError,
)
from ramet.runtime.protocol.randomness import choice_key
from ramet.runtime.scheduler.core import Scheduler
from ramet.runtime.worker.core import WorkerCore
from ramet.runtime.worker.oracle import OracleRunner, PrefixHash, logits_of

CLIENT = b"client"


class Truth:
    """What a branch must say, id by id, by the oracle's definition: no blocks, no scheduler."""

    def __init__(self, hasher: PrefixHash, vocab: int, ids: list[int], temperature: float, key: int) -> None:
        self._hasher, self._vocab = hasher, vocab
        self._temperature, self._key = temperature, key
        self.ids = list(ids)
        self._hash = hasher.after(ids)

    def next(self) -> int:
        logits = logits_of(np.array([self._hash], np.uint64), self._vocab, (self._vocab - 1,))
        if self._temperature == 0.0:
            return int(logits[0].argmax())
        one = np.ones(1, np.float32)
        batch = SampleBatch(
            temperature=one * np.float32(self._temperature),
            top_p=one,
            top_k=np.array([-1], np.int32),
            min_p=one * 0,
            key=np.array([self._key], np.uint64),
            position=np.array([len(self.ids)], np.int64),
            logprobs=np.array([-1], np.int32),
        )
        return int(sampling.sample(logits, batch).ids[0])

    def append(self, token: int) -> None:
        term = int(self._hasher.terms(np.array([token], np.int32), len(self.ids))[0])
        self._hash = (self._hash + term) % (1 << 64)
        self.ids.append(token)

    def check(self, ids: list[int]) -> None:
        for token in ids:
            expected = self.next()
            assert token == expected, f"said {token} at {len(self.ids)}, the oracle says {expected}"
            self.append(token)


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
        self,
        *,
        blocks: int = 64,
        vocab: int = 64,
        config: SchedulerConfig | None = None,
        device: bool = True,
        make_worker: Callable[[], WorkerCore] | None = None,
    ) -> None:
        """``make_worker``: another worker than the oracle's, on a pool of ``blocks`` blocks or fewer."""
        self._make_worker = make_worker
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
        self._wire: deque[Any] = deque()
        self._tables: dict[int, list[int]] = {}
        """Block table of each row, as the worker has been told."""
        self._ids = 0
        self._hash = PrefixHash()
        self.submitted: dict[tuple[bytes, int], Submit | Score] = {}
        self.tenants: dict[tuple[bytes, int], str] = {}
        self.scored_ids: list[list[int]] = []
        self.check_cached = False
        self.expected_errors = ("three steps with it failed",)
        self.truths: dict[tuple[bytes, int, int], Truth] = {}
        self.worker: WorkerCore | None = None
        if device:
            self.new_worker()

    # ------------------------------------------------------------ the worker

    def new_worker(self, blocks: int | None = None) -> None:
        """The worker dies, if there is one, with all its KV and all plans; another comes."""
        if self.worker is not None:
            self.worker.close()
        self._sent.clear()
        if self._make_worker is None:
            self.runner = OracleRunner(blocks or self.blocks, self.config.block_size, self.vocab)
            self.worker = WorkerCore(self.runner)
        else:
            self.worker = self._make_worker()
        self.take(self.scheduler.reset_device(blocks or self.blocks, self.config.block_size, "oracle", self.now))

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
                self._tables[message.row] = list(message.blocks)
                self._wire.append(message)
            elif isinstance(message, Drop | Constraint):
                self._wire.append(message)
        if plan is None:
            self._take_in()
            return False
        self.plans.append(plan)
        for row in plan.rows:
            self._tables[row.row] += row.blocks
            for index, block in row.replaced:
                self._tables[row.row][index] = block
        self._sent.append(plan)
        self._wire.append(plan)
        return True

    def _take_in(self) -> None:
        """The worker takes what stands in front of the next plan."""
        if self.worker is None:
            return
        while self._wire and not isinstance(self._wire[0], StepPlan):
            message = self._wire.popleft()
            if isinstance(message, RowStart):
                self.worker.start(message)
            elif isinstance(message, Drop):
                self.worker.drop(message.row)
            elif isinstance(message, Constraint):
                self.worker.constraint(message.key, message.spec)

    def _next_plan(self) -> StepPlan | None:
        while len(self._sent) < self.config.plan_depth and self.schedule():
            pass
        self._take_in()
        if not self._sent:
            return None
        self._wire.popleft()
        return self._sent.popleft()

    def step(self) -> bool:
        """False if there was nothing to do."""
        plan = self._next_plan()
        if plan is None:
            return False
        assert self.worker is not None
        result = self.worker.step(plan)
        self.now += 0.01
        self.take(self.scheduler.apply(result, self.now))
        return True

    def kill_worker(self) -> None:
        self._wire.clear()
        self.new_worker()

    def fail_step(self) -> bool:
        """The next step fails as a whole; its rows are forgotten by the worker."""
        plan = self._next_plan()
        if plan is None:
            return False
        assert self.worker is not None
        for row in plan.rows:
            self.worker.drop(row.row)
        rows = tuple(row.row for row in plan.rows)
        self.take(self.scheduler.apply(WorkerError(plan.step, rows, "planned failure"), self.now))
        return True

    def kill_scheduler(self) -> None:
        """The scheduler dies: another comes, and every open request is sent again with all that was heard of it."""
        self._wire.clear()
        self._sent.clear()
        self.scheduler = Scheduler(self.config)
        if self.worker is not None:
            self.worker.clear()
            self.take(self.scheduler.reset_device(self.runner.blocks, self.runner.block_size, "oracle", self.now))
        for (client, id), message in self.submitted.items():
            if (client, id) in self.rejected:
                continue
            if isinstance(message, Score):
                if not self.of(id, 0, client).terminal:
                    self.take(self.scheduler.submit(client, self._with_all_ids(client, message), self.now))
                continue
            for choice in range(message.n):
                if not self.of(id, choice, client).terminal:
                    self.take(self.scheduler.submit(client, self._resend(client, message, choice), self.now))

    def _resend(self, client: bytes, message: Submit, choice: int) -> Submit:
        heard, truth = self.of(message.id, choice, client), self.truths[client, message.id, choice]
        n_prompt = len(truth.ids) - len(heard.ids)
        scored = len(heard.prompt_logprobs)
        logits_from = message.logits_from + scored if message.logits_from >= 0 and not choice else -1
        return msgspec.structs.replace(
            message,
            ids=pack_ids(truth.ids),
            n_prompt=n_prompt,
            parent=None,
            n=1,
            choice=choice,
            sampling=msgspec.structs.replace(message.sampling, key=choice_key(message.sampling.key, choice)),
            forced=bytes(len(heard.ids)),
            logits_from=logits_from if logits_from < n_prompt - 1 else -1,
            usage=Usage(n_prompt, heard.cached, n_prompt - heard.cached) if heard.cached >= 0 and not choice else None,
        )

    def _with_all_ids(self, client: bytes, message: Score) -> Score:
        return message

    def check_in_flight(self) -> None:
        """No block that a sent plan names is free or may be evicted."""
        memory = self.scheduler._books.memory
        if memory is None or not self._sent:
            return
        named = {copy.source for plan in self._sent for copy in plan.copies}
        for plan in self._sent:
            for row in plan.rows:
                named.update(self._tables[row.row])
        loose = set(range(memory.pool.total))
        for root in memory.tree._roots.values():
            stack = [root]
            while stack:
                node = stack.pop()
                stack.extend(node.children.values())
                if node.locked:
                    loose.difference_update(node.blocks)
        loose -= {block for block in range(memory.pool.total) if memory.pool.state(block) == PRIVATE}
        assert not named & loose, f"blocks {named & loose} are named by a sent plan"

    def _check_cached(self, client: bytes, id: int, choice: int, cached: int) -> None:
        """What came from the cache was computed before, in the same namespace."""
        tenant = self.tenants[client, id]
        mine = self.truths[client, id, choice].ids
        best = 0
        for key, truth in self.truths.items():
            if self.tenants[key[0], key[1]] == tenant and key != (client, id, choice):
                agree = next((i for i, (a, b) in enumerate(zip(mine, truth.ids, strict=False)) if a != b), 1 << 30)
                best = max(best, min(agree, len(mine), len(truth.ids)))
        for ids in self.scored_ids:
            agree = next((i for i, (a, b) in enumerate(zip(mine, ids, strict=False)) if a != b), 1 << 30)
            best = max(best, min(agree, len(mine), len(ids)) if tenant == "" else 0)
        assert cached <= best, f"{cached} ids came from the cache, {best} were known in its namespace"

    def check_all_ended(self) -> None:
        """Invariant 3: every accepted choice ended in exactly one terminal message, every other request was refused."""
        for (client, id), message in self.submitted.items():
            choices = 1 if isinstance(message, Score) else message.n
            for choice in range(choices):
                ends = len(self.of(id, choice, client).terminal)
                assert ends == ((client, id) not in self.rejected), f"request {id}, choice {choice}: {ends} ends"

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
        self.submitted[client, id] = message
        self.tenants[client, id] = tenant
        self._expect(client, message)
        self.take(self.scheduler.submit(client, message, self.now))
        return id

    def _expect(self, client: bytes, message: Submit) -> None:
        ids = unpack_ids(message.ids)
        if message.parent is not None:
            (branch, choice), at = message.parent
            parent = self.truths.get((client, branch, choice))
            ids = (parent.ids[:at] if parent else []) + ids
        for choice in range(message.n):
            key = choice_key(message.sampling.key, choice)
            truth = Truth(self._hash, self.vocab, ids, message.sampling.temperature, key)
            self.truths[client, message.id, choice if message.choice < 0 else message.choice] = truth

    def score(self, ids: list[int], continuations: list[list[int]], *, client: bytes = CLIENT, **fields: Any) -> int:
        self._ids += 1
        message = Score(self._ids, pack_ids(ids), tuple(pack_ids(c) for c in continuations), **fields)
        self.submitted[client, message.id] = message
        self.scored_ids += [ids + c for c in continuations]
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
                self.rejected[client, message.id] = message
            elif isinstance(message, TokenDelta):
                heard = self.of(message.id, message.choice, client)
                assert not heard.terminal, "ids after the end"
                ids = unpack_ids(message.ids)
                assert len(message.forced) == len(ids)
                if heard.offset < 0:
                    heard.offset = message.offset
                assert message.offset == heard.offset + len(heard.ids), "a gap in the stream"
                if self._make_worker is None:
                    self.truths[client, message.id, message.choice].check(ids)
                heard.ids += ids
                heard.logprobs += message.logprobs or ()
                if heard.cached < 0 and message.choice == 0 and self.check_cached:
                    self._check_cached(client, message.id, 0, message.cached_tokens)
                heard.cached = message.cached_tokens
            elif isinstance(message, PromptLogprobs):
                self.of(message.id, message.choice, client).prompt_logprobs += message.logprobs
            elif isinstance(message, Finished):
                heard = self.of(message.id, message.choice, client)
                assert not heard.terminal, "two terminal messages"
                heard.terminal.append(message)
                if message.reason == "error":
                    assert message.message.startswith(self.expected_errors), message.message
            elif isinstance(message, Scored):
                heard = self.of(message.id, 0, client)
                assert not heard.terminal, "two terminal messages"
                heard.terminal.append(message)
                self.scored[client, message.id] = message
            elif isinstance(message, ControlReply):
                self.replies[message.call_id] = message.data

    # ------------------------------------------------------------ the truth

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """What the oracle says after ``ids``."""
        truth = Truth(self._hash, self.vocab, ids, 0.0, 0)
        for _ in range(count):
            truth.append(truth.next())
        return truth.ids[len(ids) :]
