"""How branches end, stay, go back to the queue: every way out of a row."""

from __future__ import annotations

from ramet.runtime.protocol.messages import EndReason, Finished, Scored, StopHit, Usage

from .books import Books
from .branch import Branch, Request, Row, State

FAN_OUT_S = 30.0
"""A branch that will be forked, says its program, is retained for so long after its end."""


class Lifecycle:
    def __init__(self, books: Books) -> None:
        self._books = books

    # ------------------------------------------------------------ ends

    def finish(
        self,
        branch: Branch,
        reason: EndReason,
        *,
        stop: StopHit | None = None,
        message: str = "",
        ended_at_worker: bool = False,
    ) -> None:
        """The branch's one terminal message; what it holds stays only if it is kept or children are to copy from it."""
        if branch.state is State.ENDED:
            return
        books, request, row = self._books, branch.request, branch.row
        if branch.state in (State.QUEUED, State.WAITING):
            books.queue.remove(branch)
        if reason in ("end", "stop", "length") and not request.is_score:
            books.lengths.add(branch.generated, cut=reason == "length")
        branch.state = State.ENDED
        books.suspects.pop(id(branch), None)
        if row is not None:
            if books.running.pop(row.id, None) is not None and not ended_at_worker:
                books.drop_at_worker(row)
            books.queue.wake(row, everybody=True)
            seconds = self._retention(request)
            if seconds > 0:
                row.retain_until = books.now + seconds
        self.leave_parent(branch)
        self._park_or_leave(branch)
        request.open -= 1
        books.queue.shares.leave(request.namespace.tenant)
        if branch.constraint_key:
            books.constraints.leave(branch.constraint_key)
        books.counters.finished += 1
        if request.is_score:
            self._finish_score(request, reason, message)
        else:
            books.emit(
                request.client, Finished(request.id, branch.choice, reason, branch.usage(), stop=stop, message=message)
            )
        if not branch.kept:
            books.forget(branch)
        if request.open == 0:
            books.requests.pop((request.client, request.id), None)

    def _retention(self, request: Request) -> float:
        """Seconds that a branch's KV goes last: as asked for, or because its children are announced."""
        if request.retain_s > 0:
            return request.retain_s
        return FAN_OUT_S if request.fan_out > 1 and self._books.config.switches.hints else 0.0

    def finish_request(self, request: Request, reason: EndReason, message: str = "") -> None:
        for branch in list(request.branches):
            self.finish(branch, reason, message=message)

    def _finish_score(self, request: Request, reason: EndReason, message: str) -> None:
        if request.closed:
            return
        if reason in ("cancelled", "error"):
            request.closed = True
            self._books.emit(request.client, Finished(request.id, 0, reason, score_usage(request), message=message))
            self.finish_request(request, reason, message)
        elif request.open == 0:
            request.closed = True
            logprobs = tuple(tuple(branch.scored) for branch in request.branches)
            self._books.emit(request.client, Scored(request.id, logprobs, score_usage(request)))

    # ------------------------------------------------------------ rows that stay without running

    def _park_or_leave(self, branch: Branch) -> None:
        row, memory = branch.row, self._books.memory
        if row is None or memory is None:
            return
        if row.leaving:
            branch.row = None
        elif branch.kept or branch.unseated_children:
            memory.withdraw(row)
            self._books.parked[row.id] = branch
        else:
            branch.row = None
            memory.leave(row)

    def demote(self, branch: Branch) -> None:
        """Take a parked branch's blocks; its ids stay, so its next use finds or computes them again."""
        row, memory = branch.row, self._books.memory
        if row is not None and self._books.parked.pop(row.id, None) is not None:
            branch.row = None
            if memory is not None:
                memory.leave(row)

    def release(self, branch: Branch) -> None:
        """The holder has no more use for the branch; a running one goes on and ends unkept."""
        branch.kept = False
        if branch.state is State.ENDED:
            if branch.row is not None and self._books.config.switches.hints:
                branch.row.spent = True
            if not branch.unseated_children:
                self.demote(branch)
            self._books.forget(branch)

    def leave_parent(self, branch: Branch) -> None:
        """The branch has had its chance to copy its parent's tail."""
        parent, branch.parent = branch.parent, None
        if parent is None:
            return
        parent.unseated_children -= 1
        if parent.state is State.ENDED and not parent.kept and not parent.unseated_children:
            self.demote(parent)

    # ------------------------------------------------------------ back to the queue

    def push_back(self, row: Row) -> None:
        """Give a running row's blocks back and requeue its branch in its old place; it computes again what is lost."""
        books, memory = self._books, self._books.memory
        assert memory is not None
        del books.running[row.id]
        books.drop_at_worker(row)
        books.queue.wake(row, everybody=True)
        flying = bool(row.flight)
        memory.leave(row)
        if flying:
            books.returning[row.id] = row
        else:
            self.requeue(row.branch)

    def requeue(self, branch: Branch) -> None:
        branch.row = None
        branch.priority = branch.request.priority
        self._books.queue.add(branch)


def score_usage(request: Request) -> Usage:
    """A Score's context is counted once, in its first row; each continuation in its own."""
    cached = request.branches[0].cached
    prompt = request.branches[0].n_prompt + sum(b.n_prompt - b.at for b in request.branches[1:])
    return Usage(prompt=prompt, cached=cached, computed=prompt - cached)
