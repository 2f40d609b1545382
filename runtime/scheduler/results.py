"""From a StepResult to what the frontends are told, and to what the tree may share from now on."""

from __future__ import annotations

from ramet.runtime.protocol.messages import PromptLogprobs, RowResult, StepResult, TokenDelta

from .books import Books
from .branch import ID_BYTES, Branch, Row, State
from .lifecycle import Lifecycle
from .memory import Flight
from .planner import SOLO_BLAME
from .seating import is_counted
from .waste import count_waste


class Results:
    def __init__(self, books: Books, lifecycle: Lifecycle) -> None:
        self._books = books
        self._life = lifecycle

    def take(self, result: StepResult) -> None:
        """Book a step that came back. One that is not the oldest sent plan's is none of ours: ignored."""
        books, memory = self._books, self._books.memory
        if memory is None or not memory.flights or memory.flights[0].step != result.step:
            return
        books.counters.steps += 1
        books.step_times.append((result.seconds, result.gap))
        flight = memory.landed()
        reports = {report.row: report for report in result.rows}
        for row in flight.rows:
            _, ceiling = row.flight.popleft()
            report = reports.get(row.id)
            if report is not None and row.branch.row is row and row.branch.state is State.RUNNING:
                self._take_row(row, report)
            else:
                row.ahead -= ceiling
        count_waste(books)
        self._settle(flight)

    def fail(self, step: int, message: str) -> None:
        """The step failed as a whole, and the worker forgot its rows: each runs again, and is blamed for one crash."""
        books, memory = self._books, self._books.memory
        if memory is None or not memory.flights or memory.flights[0].step != step:
            return
        books.counters.crashes += 1
        flight = memory.landed()
        for row in flight.rows:
            row.flight.popleft()
        for row in flight.rows:
            if row.branch.row is not row or row.branch.state is not State.RUNNING:
                continue
            if not row.leaving:
                self._life.push_back(row)
            self.blame(row.branch, message)
        self._settle(flight)

    def blame(self, branch: Branch, message: str) -> None:
        """One more crash of a plan that named the branch. The third, alone, is its end."""
        branch.blame += 1
        if branch.blame > SOLO_BLAME:
            self._life.finish(branch, "error", message=f"three steps with it failed, the last one alone: {message}")
        elif branch.blame == SOLO_BLAME:
            self._books.suspects[id(branch)] = branch

    # ------------------------------------------------------------ inside

    def _settle(self, flight: Flight) -> None:
        books, memory = self._books, self._books.memory
        assert memory is not None
        memory.settle(flight)
        for row in flight.leaving:
            if books.returning.pop(row.id, None) is not None and row.branch.state is State.RUNNING:
                self._life.requeue(row.branch)

    def _take_row(self, row: Row, report: RowResult) -> None:
        books, branch = self._books, row.branch
        self._count_computed(branch, row.computed, report.computed)
        row.computed = report.computed
        row.ahead = row.computed + sum(ceiling for _, ceiling in row.flight)
        if report.prompt_logprobs is not None:
            self._take_prompt_logprobs(branch, report)
        if report.ids:
            self._take_ids(branch, report)
        assert books.memory is not None
        books.memory.store(row)
        books.queue.wake(row)
        if report.end is not None:
            self._life.finish(
                branch, report.end.reason, stop=report.end.stop, message=report.end.message, ended_at_worker=True
            )

    def _take_ids(self, branch: Branch, report: RowResult) -> None:
        books, offset = self._books, branch.length
        branch.ids += report.ids
        forced = sum(report.forced)
        sampled = len(report.ids) // ID_BYTES - forced
        branch.forced += forced
        branch.sampled += sampled
        books.queue.shares.charge(branch.request.namespace.tenant, forced + sampled)
        books.counters.tokens.forced += forced
        books.counters.tokens.sampled += sampled
        if branch.blame:
            branch.blame = 0
            books.suspects.pop(id(branch), None)
        books.emit(
            branch.request.client,
            TokenDelta(
                branch.request.id,
                branch.choice,
                offset,
                report.ids,
                report.forced,
                report.logprobs,
                branch.request.branches[0].cached_at_first,
            ),
        )

    def _take_prompt_logprobs(self, branch: Branch, report: RowResult) -> None:
        assert report.prompt_logprobs is not None
        first, entries = report.prompt_logprobs
        entries = entries[max(branch.scored_until - first, 0) :]
        if not entries:
            return
        offset = branch.scored_until
        branch.scored_until += len(entries)
        if branch.request.is_score:
            branch.scored.extend(entries)
        else:
            self._books.emit(branch.request.client, PromptLogprobs(branch.request.id, branch.choice, offset, entries))

    def _count_computed(self, branch: Branch, old: int, new: int) -> None:
        """Prompt ids are counted where they are computed for the first time; anything below that is lost work."""
        counters = self._books.counters
        prompt_new = min(new, branch.n_prompt)
        fresh = max(prompt_new - max(branch.high_water, old), 0)
        branch.high_water = max(branch.high_water, prompt_new)
        branch.computed += fresh
        if is_counted(branch):
            counters.tokens.computed += fresh
            counters.tokens.prompt += fresh
        again = max(min(new, branch.peak_computed) - old, 0)
        branch.peak_computed = max(branch.peak_computed, new)
        counters.recomputed += again
