"""A scripted device and scripted constraints for the worker's tests: small, exact, and honest about KV."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from ramet.kernels.ops import Batch, SampleBatch, SampleResult
from ramet.runtime.protocol.errors import UnsupportedConstraint
from ramet.runtime.protocol.ids import pack_ids, unpack_ids
from ramet.runtime.protocol.messages import (
    ConstraintSpec,
    Limits,
    PlanRow,
    RowEnd,
    RowStart,
    Sampling,
    StepPlan,
    Stops,
    TokenLogprob,
)
from ramet.runtime.protocol.randomness import uniform
from ramet.runtime.worker.core import WorkerCore

VOCAB = 40
END = 0
_WORDS = (b"a", b"b", b"c", b"ab", b"bc", b"abc", b"ca", b"cab", b"aa", b"bb", b"cc", b"d", b"da", b"dab", b"x", b"xy")
TOKEN_BYTES = [b"", *_WORDS, *[b"-"] * 23]


class FakeRunner:
    """KV slot = hash of the prefix that ends there, read through the block tables; logits = a function of that hash.
    A wrong table, count or copy changes every following id."""

    blocks = 256
    fingerprint = "fake"
    vocab_size = VOCAB
    end_ids = (END,)
    token_bytes = TOKEN_BYTES

    def __init__(self, block_size: int = 4, *, end_weight: float = -2.0) -> None:
        self.block_size = block_size
        self.end_weight = end_weight
        self.batches: list[Batch] = []
        self.fail_next: Exception | None = None
        self._kv = [b""] * (self.blocks * block_size)

    def _slot(self, batch: Batch, row: int, position: int) -> int:
        return int(batch.block_tables[row, position // self.block_size]) * self.block_size + position % self.block_size

    def forward(self, batch: Batch) -> np.ndarray:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.batches.append(batch)
        hashes: list[bytes] = []
        for row in range(len(batch.row_start) - 1):
            for k in range(batch.row_start[row], batch.row_start[row + 1]):
                position = int(batch.positions[k])
                before = self._kv[self._slot(batch, row, position - 1)] if position else b"root"
                own = hashlib.blake2b(before + int(batch.ids[k]).to_bytes(4, "little"), digest_size=8).digest()
                self._kv[self._slot(batch, row, position)] = own
                hashes.append(own)
            assert batch.context[row] == batch.positions[batch.row_start[row + 1] - 1] + 1
        return np.stack([self._logits(hashes[i]) for i in batch.logit_rows]) if len(batch.logit_rows) else _NO_LOGITS

    def _logits(self, prefix: bytes) -> np.ndarray:
        logits = np.random.default_rng(int.from_bytes(prefix, "little")).normal(0, 2, VOCAB).astype(np.float32)
        logits[END] += self.end_weight
        return logits

    def sample(self, logits: np.ndarray, batch: SampleBatch) -> SampleResult:
        drawn, raws, maskeds = [], [], []
        width = int(max(batch.logprobs.max(), 0))
        top_ids = np.full((len(logits), width), -1, np.int32)
        top_raw = np.zeros((len(logits), width), np.float32)
        for i, row in enumerate(logits):
            values = row.astype(np.float64)
            if batch.scale_start is not None:
                for k in range(batch.scale_start[i], batch.scale_start[i + 1]):
                    token, by = batch.scale_ids[k], batch.scale_values[k]
                    values[token] = values[token] / by if values[token] > 0 else values[token] * by
            if batch.adjust_start is not None:
                for k in range(batch.adjust_start[i], batch.adjust_start[i + 1]):
                    values[batch.adjust_ids[k]] += batch.adjust_values[k]
            allowed = np.ones(VOCAB, bool)
            if batch.mask is not None and batch.masked[i]:
                allowed = np.array([bool(batch.mask[i, t // 32] >> np.uint32(t % 32) & 1) for t in range(VOCAB)])
            values[~allowed] = -np.inf
            if not np.isfinite(values).any():
                drawn.append(-1)
            elif batch.temperature[i] == 0:
                drawn.append(int(values.argmax()))
            else:
                weights = np.exp((values - values.max()) / batch.temperature[i])
                order = np.argsort(-weights, kind="stable")
                sums = np.cumsum(weights[order])
                u = uniform(int(batch.key[i]), int(batch.position[i]))
                drawn.append(int(order[np.searchsorted(sums, u * sums[-1], side="right")]))
            log_softmax = _log_softmax(row)
            raws.append(log_softmax[drawn[-1]])
            share = np.exp(log_softmax[allowed]).sum()
            maskeds.append(log_softmax[drawn[-1]] - (np.log(share) if share else 0.0))
            best = np.argsort(-log_softmax, kind="stable")[:width]
            top_ids[i], top_raw[i] = best, log_softmax[best]
        return SampleResult(
            np.array(drawn, np.int32), np.array(raws, np.float32), np.array(maskeds, np.float32), top_ids, top_raw
        )

    def token_logprobs(self, logits: np.ndarray, ids: np.ndarray, top: int):  # type: ignore[no-untyped-def]
        values = np.stack([_log_softmax(row) for row in logits]).astype(np.float32)
        best = np.argsort(-values, axis=1, kind="stable")[:, :top].astype(np.int32)
        return values[np.arange(len(ids)), ids], best, np.take_along_axis(values, best, 1)

    def copy_blocks(self, source: np.ndarray, target: np.ndarray, tokens: np.ndarray) -> None:
        size = self.block_size
        for a, b, count in zip(source.tolist(), target.tolist(), tokens.tolist(), strict=True):
            self._kv[b * size : b * size + count] = self._kv[a * size : a * size + count]


_NO_LOGITS = np.zeros((0, VOCAB), np.float32)


def _log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row.astype(np.float64) - row.max()
    return shifted - np.log(np.exp(shifted).sum())


# ------------------------------------------------------------------------------------------------ constraints


@dataclass
class ScriptMatcher:
    """Allows, place by place, the ids of ``script[place]``; single ones are forced. ``fault``: place at which filling
    the mask raises."""

    script: tuple[frozenset[int], ...]
    fault: int = -1
    place: int = 0

    def advance(self, ids: Sequence[int]) -> bool:
        for k, token in enumerate(ids):
            if self.place + k >= len(self.script) or token not in self.script[self.place + k]:
                return False
        self.place += len(ids)
        return True

    def forced(self) -> list[int]:
        run: list[int] = []
        for allowed in self.script[self.place :]:
            if len(allowed) != 1:
                break
            run.extend(allowed)
        return run

    def fill_mask(self, row: np.ndarray) -> None:
        if self.place == self.fault:
            raise RuntimeError("scripted fault")
        for token in self.script[self.place] if self.place < len(self.script) else {END}:
            row[token // 32] |= np.uint32(1 << token % 32)

    def rollback(self, count: int) -> None:
        self.place -= count

    def fork(self) -> ScriptMatcher:
        return ScriptMatcher(self.script, self.fault, self.place)

    @property
    def can_end(self) -> bool:
        return self.finished

    @property
    def finished(self) -> bool:
        return self.place == len(self.script)


@dataclass
class ScriptConstraint:
    script: tuple[frozenset[int], ...]
    fault: int = -1
    lane: str = "engine"
    size: int = 100

    def matcher(self) -> ScriptMatcher:
        return ScriptMatcher(self.script, self.fault)


def spec(script: Sequence[Sequence[int]], fault: int = -1) -> ConstraintSpec:
    return ConstraintSpec("script", repr([sorted(s) for s in script]), options=str(fault))


def compile_script(given: ConstraintSpec) -> ScriptConstraint:
    if given.kind != "script":
        raise UnsupportedConstraint(f"kind {given.kind} is not known here", keyword=given.kind)
    import ast

    script = tuple(frozenset(place) for place in ast.literal_eval(given.text))
    return ScriptConstraint(script, int(given.options or -1))


# ------------------------------------------------------------------------------------------------ driving


@dataclass
class Request:
    prompt: list[int]
    max_tokens: int = 12
    min_tokens: int = 0
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    stops: Stops = field(default_factory=Stops)
    logprobs: int = -1
    logits_from: int = -1
    constraint: ConstraintSpec | None = None

    def start(
        self, row: int, generated: Sequence[int] = (), blocks: tuple[int, ...] = (), computed: int = 0
    ) -> RowStart:
        return RowStart(
            row=row,
            ids=pack_ids([*self.prompt, *generated]),
            n_prompt=len(self.prompt),
            computed=0,
            blocks=(),
            sampling=self.sampling,
            stops=self.stops,
            limits=Limits(self.max_tokens, self.min_tokens),
            logits_from=self.logits_from,
            logprobs=self.logprobs,
            constraint_key="" if self.constraint is None else f"{self.constraint.text}/{self.constraint.options}",
        )


@dataclass
class Outcome:
    """What a row has said so far."""

    ids: list[int] = field(default_factory=list)
    forced: bytes = b""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_from: int = -1
    computed: int = 0
    end: RowEnd | None = None

    def essence(self) -> tuple[object, ...]:
        """Everything that must not depend on how the work was cut up."""
        return (
            self.ids,
            self.forced,
            _rounded(self.logprobs),
            _rounded(self.prompt_logprobs),
            self.prompt_from,
            self.end,
        )


def _rounded(entries: list[TokenLogprob]) -> list[object]:
    return [(round(e.raw, 6), round(e.masked, 6), [(t, round(v, 6)) for t, v in e.top]) for e in entries]


class Driver:
    """A minimal scheduler: grants blocks one after another, never frees them, plans all live rows in each step."""

    def __init__(self, core: WorkerCore, runner: FakeRunner) -> None:
        self.core = core
        self.size = runner.block_size
        self._next_block = 1
        self._step = 0
        self._known: dict[int, int] = {}
        self._granted: dict[int, int] = {}
        self.outcomes: dict[int, Outcome] = {}

    def add(self, row: int, request: Request, outcome: Outcome | None = None) -> None:
        outcome = outcome or Outcome()
        outcome.computed = 0
        if request.constraint is not None:
            key = request.start(row).constraint_key
            self.core.constraint(key, request.constraint)
        self.core.start(request.start(row, outcome.ids))
        self.outcomes[row] = outcome
        self._known[row] = len(request.prompt) + len(outcome.ids)
        self._granted[row] = 0

    def step(self, ceiling: Callable[[], int], spare: int = 6) -> None:
        planned = []
        for row, outcome in self.outcomes.items():
            if outcome.end is not None:
                continue
            limit = min(ceiling(), self._known[row] + spare - outcome.computed)
            need = -(-(outcome.computed + limit) // self.size) - self._granted[row]
            blocks = tuple(range(self._next_block, self._next_block + max(need, 0)))
            self._next_block += len(blocks)
            self._granted[row] += len(blocks)
            planned.append(PlanRow(row, limit, blocks))
        self._step += 1
        for result in self.core.step(StepPlan(self._step, tuple(planned))).rows:
            outcome = self.outcomes[result.row]
            new = unpack_ids(result.ids)
            assert len(result.forced) == len(new)
            outcome.ids += new
            outcome.forced += result.forced
            outcome.computed = result.computed
            if result.logprobs is not None:
                assert len(result.logprobs) == len(new)
                outcome.logprobs += result.logprobs
            if result.prompt_logprobs is not None:
                first, entries = result.prompt_logprobs
                if outcome.prompt_from < 0:
                    outcome.prompt_from = first
                assert first == outcome.prompt_from + len(outcome.prompt_logprobs)
                outcome.prompt_logprobs += entries
            outcome.end = result.end
            self._known[result.row] += len(new)
            assert result.end is not None or outcome.computed < self._known[result.row]

    def finish(self, ceiling: Callable[[], int] = lambda: 1 << 20, steps: int = 1000) -> dict[int, Outcome]:
        for _ in range(steps):
            if all(outcome.end is not None for outcome in self.outcomes.values()):
                return self.outcomes
            self.step(ceiling)
        raise AssertionError("a row does not end")


def new_driver(*, jump_forward: bool = True, **options: float) -> Driver:
    runner = FakeRunner(**options)  # type: ignore[arg-type]
    return Driver(WorkerCore(runner, compile_script, jump_forward=jump_forward), runner)


def alone(request: Request, *, jump_forward: bool = True) -> Outcome:
    """The request as it ends undisturbed."""
    driver = new_driver(jump_forward=jump_forward)
    driver.add(1, request)
    outcome = driver.finish()[1]
    driver.core.close()
    return outcome


def text_of(ids: Sequence[int]) -> bytes:
    return b"".join(TOKEN_BYTES[i] for i in ids)
