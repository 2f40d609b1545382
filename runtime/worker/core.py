"""The worker without its sockets: rows with tails, plans in, results out.

A step lets the computed count of each planned row catch up with its known ids, and samples where the tail is then
empty; prefill, decode, forced ids and resume are this one mechanism:

    ids       0 ............................................ len(ids)
    computed  0 ......... c | ... min(ceiling, tail) ... | ......
                            |      computed by this step | left for the next one

What a result says, beyond the message's own documentation:

* A row that is unknown here (ended before, dropped, lost with a failed step) is skipped: it has no entry.
* End ids and stop ids are dropped: neither reported nor counted. Of a stop string, the id that completes it is the
  last one reported; a forced run is cut there, at ``max_tokens``, or where the value is complete.
* ``end`` is also the reason when a constraint is complete, even with the very last id that ``max_tokens`` allows.
* Forced ids are reported in the step that appends them, which may be a row's first, before its prompt is computed. With
  log-probabilities wanted they are reported, with true ones, in the step that computes the logits in front of them;
  their row may need a step more before its end is reported.
* ``logits_from`` = p asks for the logits at positions p, p + 1, ...: the first scored id is ids[p + 1], the last
  is the prompt's last. Entries come in the steps that compute those positions.
* A row with ``max_tokens`` 0 ends with ``length`` when all of its ids are computed.
* A row whose constraint is still being compiled takes part in a step without computing anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import msgspec
import numpy as np
from numpy.typing import NDArray
from ramet.runtime.protocol.ids import pack_ids
from ramet.runtime.protocol.messages import (
    ConstraintFailed,
    ConstraintSpec,
    PlanRow,
    RowEnd,
    RowResult,
    RowStart,
    StepPlan,
    StepResult,
    TokenLogprob,
)

from .batch import BlockTables, RowWork, StepInput, build
from .constraints import Compile, ConstraintCache, ConstraintUnavailable
from .masks import MaskFiller, Masks
from .row import Row, Vocabulary, WaitingRow
from .runner import Runner
from .sampling import SamplingTable, sampled_logprob, scored_logprob

DEFAULT_CONSTRAINT_BYTES = 256 * 1024 * 1024
COMPILE_WAIT_S = 0.02
"""A step that could only wait for a compile waits so long, instead of being planned again and again."""


class WorkerCore:
    """``compile_spec`` turns a specification into a compiled constraint, on ``compiler`` where one is given, so that
    other rows go on meanwhile; ``clock`` gives seconds."""

    def __init__(
        self,
        runner: Runner,
        compile_spec: Compile | None = None,
        *,
        jump_forward: bool = True,
        constraint_bytes: int = DEFAULT_CONSTRAINT_BYTES,
        clock: Callable[[], float] = time.perf_counter,
        compiler: Executor | None = None,
    ) -> None:
        self.runner = runner
        self._jump_forward = jump_forward
        self._clock = clock
        self._vocabulary = Vocabulary(tuple(runner.end_ids), runner.token_bytes)
        self._constraints = ConstraintCache(compile_spec, constraint_bytes, compiler)
        self._rows: dict[int, Row] = {}
        self._waiting: dict[int, WaitingRow] = {}
        self._free_slots: list[int] = []
        self._tables = BlockTables(runner.block_size)
        self._sampling = SamplingTable()
        self._masks = MaskFiller(runner.vocab_size)
        self._idle_since = clock()

    # ------------------------------------------------------------ messages that come before plans

    def constraint(self, key: str, spec: ConstraintSpec) -> None:
        """Compile. If that fails, ``take_failures`` says so, and rows that name the key end with ``error``."""
        self._constraints.add(key, spec)

    def warm(self) -> None:
        """Get ready to compile constraints, beside the steps."""
        self._constraints.warm()

    def take_failures(self) -> list[ConstraintFailed]:
        """Constraints that turned out not to compile since the last call."""
        return self._constraints.take_failures()

    def start(self, start: RowStart) -> None:
        """Take a row in. One that cannot run (its constraint failed) ends with ``error`` in its first plan."""
        self.drop(start.row)
        slot = self._take_slot()
        try:
            self._tables.start(slot, start)
            self._sampling.set(slot, start.sampling, start.logprobs)
        except Exception as error:  # a value that a table cannot hold is its row's fault, not the worker's
            self._rows[start.row] = self._failed_row(start, slot, _not_started(error))
            return
        if start.constraint_key and not self._constraints.ready(start.constraint_key):
            self._waiting[start.row] = WaitingRow(start, slot, len(start.blocks))
        else:
            self._rows[start.row] = self._make_row(start, slot)

    def drop(self, row: int) -> None:
        """Forget a row. Idempotent."""
        old = self._rows.pop(row, None) or self._waiting.pop(row, None)
        if old is not None:
            self._free_slots.append(old.slot)

    def clear(self) -> None:
        """Forget all rows: the scheduler that sent them is gone."""
        for row in [*self._rows, *self._waiting]:
            self.drop(row)

    def close(self) -> None:
        self._masks.close()

    # ------------------------------------------------------------ a step

    def step(self, plan: StepPlan) -> StepResult:
        """Run one plan. Raises what the runner raises: the plan's rows are then forgotten, for their state is unknown,
        and the scheduler starts them anew."""
        began = self._clock()
        gap = began - self._idle_since
        try:
            results = self._run(plan)
        except BaseException:
            for planned in plan.rows:
                self.drop(planned.row)
            raise
        finally:
            self._idle_since = self._clock()
        return StepResult(plan.step, tuple(results), seconds=self._idle_since - began, gap=gap)

    def _run(self, plan: StepPlan) -> list[RowResult]:
        if plan.copies:
            self.runner.copy_blocks(
                np.array([copy.source for copy in plan.copies], np.int32),
                np.array([copy.target for copy in plan.copies], np.int32),
                np.array([copy.tokens for copy in plan.copies], np.int32),
            )
        waiting = self._admit(plan) if self._waiting else []
        works = [self._work(row, planned) for planned in plan.rows if (row := self._rows.get(planned.row)) is not None]
        prompt_logprobs: dict[int, tuple[int, tuple[TokenLogprob, ...]]] = {}
        computing = [work for work in works if work.stop > work.row.computed]
        if computing:
            self._compute(computing, plan, prompt_logprobs)
        elif waiting:
            self._constraints.wait(waiting[0].start.constraint_key, COMPILE_WAIT_S)
        results = [self._report(work.row, prompt_logprobs.get(work.row.start.row)) for work in works]
        results += [RowResult(row.start.row, row.start.computed) for row in waiting]
        return results

    def _admit(self, plan: StepPlan) -> list[WaitingRow]:
        """Make rows of those whose constraint is there now; the plan's rows that still wait."""
        for waiting in list(self._waiting.values()):
            if self._constraints.ready(waiting.start.constraint_key):
                row = self._make_row(waiting.start, waiting.slot)
                row.blocks = waiting.blocks
                self._rows[waiting.start.row] = row
                del self._waiting[waiting.start.row]
        still: list[WaitingRow] = []
        for planned in plan.rows:
            held = self._waiting.get(planned.row)
            if held is not None:
                self._tables.update(held, planned)
                still.append(held)
        return still

    def _work(self, row: Row, planned: PlanRow) -> RowWork:
        self._tables.update(row, planned)
        stop = row.computed + min(max(planned.ceiling, 0), row.tail)
        if stop > self._tables.room(row):
            row.fail(f"the plan computes up to {stop}, the row's blocks hold {self._tables.room(row)} ids")
            stop = row.computed
        if stop == row.computed:
            return RowWork(row, stop, (), samples=False)
        samples = row.final is None and stop == len(row.ids)
        return RowWork(row, stop, tuple(row.scored(stop)), samples)

    def _compute(
        self,
        works: list[RowWork],
        plan: StepPlan,
        prompt_logprobs: dict[int, tuple[int, tuple[TokenLogprob, ...]]],
    ) -> None:
        sampling = [work.row for work in works if work.samples]
        filling = self._masks.begin([row.matcher for row in sampling]) if sampling else None
        try:
            step = build(works, plan.groups, self._tables)
            logits = self.runner.forward(step.batch)
        finally:
            masks = filling.result() if filling is not None else Masks()
        if len(step.scored):
            self._score(works, step, logits, prompt_logprobs)
        for work in works:
            work.row.computed = work.stop
        if sampling:
            self._sample(sampling, _pick(logits, step.sampled), masks)

    def _score(
        self,
        works: list[RowWork],
        step: StepInput,
        logits: NDArray[np.float32],
        prompt_logprobs: dict[int, tuple[int, tuple[TokenLogprob, ...]]],
    ) -> None:
        targets = [work.row.ids[position + 1] for work in works for position in work.scored]
        top = max(max(work.row.start.logprobs, 0) for work in works if work.scored)
        raw, top_ids, top_raw = self.runner.token_logprobs(_pick(logits, step.scored), np.array(targets, np.int32), top)
        values, best_ids, best_raw = raw.tolist(), top_ids.tolist(), top_raw.tolist()
        at = 0
        for work in works:
            row, k = work.row, max(work.row.start.logprobs, 0)
            prompt: list[TokenLogprob] = []
            for position in work.scored:
                forced = position + 1 >= row.n_prompt
                entry = scored_logprob(values[at], best_ids[at][:k], best_raw[at][:k], forced=forced)
                (row.logprobs if forced else prompt).append(entry)
                at += 1
            if prompt:
                prompt_logprobs[row.start.row] = (work.scored[0] + 1, tuple(prompt))

    def _sample(self, rows: list[Row], logits: NDArray[np.float32], masks: Masks) -> None:
        for row in rows:
            if row.adjustments is not None:
                row.adjustments.count(row.ids)
        result = self.runner.sample(
            logits,
            self._sampling.assemble(
                np.array([row.slot for row in rows], np.intp),
                [len(row.ids) for row in rows],
                [row.adjustments for row in rows],
                [masks.without_dead_end(index, row.banned) for index, row in enumerate(rows)],
                masks.mask,
                masks.masked,
            ),
        )
        drawn = result.ids.tolist()
        failed = dict(masks.errors)
        for index, row in enumerate(rows):
            if index in failed:
                row.fail(failed[index])
                continue
            entry = sampled_logprob(result, index, row.start.logprobs) if row.wants_logprobs else None
            try:
                row.take_sampled(drawn[index], entry)
            except Exception as error:  # a matcher's fault is its row's, not the step's
                row.fail(f"the constraint failed: {type(error).__name__}: {error}")

    def _report(self, row: Row, prompt: tuple[int, tuple[TokenLogprob, ...]] | None) -> RowResult:
        ids, forced, logprobs = row.take_reportable()
        end: RowEnd | None = None
        if row.done:
            end = row.final
            self.drop(row.start.row)
        return RowResult(
            row=row.start.row,
            computed=row.computed,
            ids=pack_ids(ids) if ids else b"",
            forced=forced,
            logprobs=logprobs,
            prompt_logprobs=prompt,
            end=end,
        )

    # ------------------------------------------------------------ slots

    def _take_slot(self) -> int:
        if not self._free_slots:
            old = self._tables.slots
            self._tables.resize(max(2 * old, 64))
            self._sampling.resize(self._tables.slots)
            self._free_slots = list(range(self._tables.slots - 1, old - 1, -1))
        return self._free_slots.pop()

    def _make_row(self, start: RowStart, slot: int) -> Row:
        """Its constraint is ready. A row that cannot run does nothing but end."""
        try:
            matcher = self._constraints.matcher(start.constraint_key) if start.constraint_key else None
            return Row(start, slot, self._vocabulary, matcher, jump_forward=self._jump_forward)
        except ConstraintUnavailable as error:
            message = str(error)
        except Exception as error:  # a matcher's fault is its row's, not the worker's
            message = _not_started(error)
        return self._failed_row(start, slot, message)

    def _failed_row(self, start: RowStart, slot: int, message: str) -> Row:
        """It does nothing but end with ``error``."""
        bare = msgspec.structs.replace(start, ids=b"", n_prompt=0)
        row = Row(bare, slot, self._vocabulary, None, jump_forward=False)
        row.fail(message)
        return row


def _not_started(error: Exception) -> str:
    return f"the row could not be started: {type(error).__name__}: {error}"


def _pick(logits: NDArray[np.float32], rows: NDArray[np.intp] | Sequence[int]) -> NDArray[np.float32]:
    """Rows of the logits, without a copy where that is all of them."""
    return logits if len(rows) == len(logits) else logits[rows]
