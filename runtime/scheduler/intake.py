"""Requests coming in: what is refused at once, and the branches of what is accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
from ramet.runtime.protocol.messages import Accepted, Limits, Rejected, Sampling, Score, Stops, Submit
from ramet.runtime.protocol.randomness import choice_key

from .books import Books
from .branch import ID_BYTES, Branch, Request


@dataclass(frozen=True, slots=True)
class Refusal:
    code: str
    message: str


class Intake:
    def __init__(self, books: Books) -> None:
        self._books = books

    def submit(self, client: bytes, msg: Submit, now: float) -> None:
        """Queue the branches of ``msg`` and emit Accepted, or Rejected. An open one is not made twice."""
        books = self._books
        request = books.requests.get((client, msg.id))
        first = max(msg.choice, 0)
        if request is not None and any(branch.choice == first for branch in request.branches):
            return
        if (client, msg.id, first) in books.branches:
            message = f"branch ({msg.id}, {first}) has ended and is kept: submit under an id that was not used"
            self._reject(client, msg.id, Refusal("invalid_request", message))
            return
        prefix = self._prefix(client, msg)
        refusal = prefix if isinstance(prefix, Refusal) else self._refuse_submit(msg, prefix)
        if refusal is not None:
            self._reject(client, msg.id, refusal)
            return
        assert isinstance(prefix, _Prefix)
        if request is None:
            request = self._request(client, msg, now)
            request.fan_out, request.retain_s = msg.fan_out, msg.retain_s
        ids = prefix.ids + msg.ids
        limits = Limits(self._max_tokens(msg.n_prompt, msg.limits.max_tokens), msg.limits.min_tokens)
        for choice in range(first, first + msg.n):
            sampling = msg.sampling
            if msg.n > 1 and choice:
                sampling = msgspec.structs.replace(sampling, key=choice_key(sampling.key, choice))
            branch = Branch(
                request,
                choice,
                bytearray(ids),
                msg.n_prompt,
                sampling,
                limits,
                msg.stops,
                logits_from=msg.logits_from if choice == first else -1,
                logprobs=msg.logprobs,
                constraint_key=msg.constraint_key,
                kept=msg.keep,
            )
            branch.scored_until = branch.logits_from + 1
            if msg.n > 1 and choice > first:
                self._adopt(branch, request.branches[0], msg.n_prompt)
            elif prefix.parent is not None:
                self._adopt(branch, prefix.parent, prefix.at)
            self._inherit(branch, msg)
            self._add(request, branch)
        self._accept(request)

    def score(self, client: bytes, msg: Score, now: float) -> None:
        """One row per continuation. They sample nothing; each copies the context's tail from the first."""
        books = self._books
        if (client, msg.id) in books.requests:
            return
        prefix = self._prefix(client, msg)
        refusal = prefix if isinstance(prefix, Refusal) else self._refuse_score(msg, prefix)
        if refusal is not None:
            self._reject(client, msg.id, refusal)
            return
        assert isinstance(prefix, _Prefix)
        request = self._request(client, msg, now)
        request.is_score = True
        context = prefix.ids + msg.ids
        at = len(context) // ID_BYTES
        for choice, continuation in enumerate(msg.continuations):
            ids = bytearray(context + continuation)
            length = len(ids) // ID_BYTES
            branch = Branch(
                request,
                choice,
                ids,
                length,
                Sampling(temperature=0.0),
                Limits(0),
                Stops(),
                logits_from=at - 1,
                logprobs=msg.logprobs,
            )
            branch.scored_until = at
            branch.at = at
            if choice:
                self._adopt(branch, request.branches[0], at)
            elif prefix.parent is not None:
                self._adopt(branch, prefix.parent, prefix.at)
                branch.at = at
            self._add(request, branch)
        self._accept(request)

    # ------------------------------------------------------------ what is refused

    def _prefix(self, client: bytes, msg: Submit | Score) -> _Prefix | Refusal:
        """The ids in front of the cut."""
        if len(msg.ids) % ID_BYTES:
            return Refusal("invalid_request", f"ids are {len(msg.ids)} bytes, not a whole number of int32")
        if msg.parent is None:
            return _Prefix(b"", None, 0)
        (branch_id, choice), at = msg.parent
        parent = self._books.find(client, branch_id, choice)
        if parent is None or parent.request.namespace != msg.namespace:
            return Refusal(
                "unknown_branch",
                f"branch ({branch_id}, {choice}) is not known here: it was released, or belongs to another frontend or "
                "namespace; send all ids without a parent",
            )
        if not 0 <= at <= parent.length:
            return Refusal(
                "unknown_branch", f"cut at {at}, branch ({branch_id}, {choice}) has {parent.length} ids: use 0 to that"
            )
        return _Prefix(bytes(memoryview(parent.ids)[: at * ID_BYTES]), parent, at)

    def _refuse_submit(self, msg: Submit, prefix: _Prefix) -> Refusal | None:
        total = (len(prefix.ids) + len(msg.ids)) // ID_BYTES
        if msg.n < 1:
            return Refusal("invalid_request", f"n is {msg.n}; ask for at least 1 choice")
        if not 0 < msg.n_prompt <= total:
            return Refusal("invalid_request", f"n_prompt is {msg.n_prompt}, the branch has {total} ids: 1 to that")
        if msg.constraint_key and msg.constraint_key not in self._books.constraints:
            return Refusal(
                "unknown_constraint",
                f"constraint {msg.constraint_key!r} is not known here: send it before its first use",
            )
        return self._refuse(msg, msg.n, total, total + (1 if msg.limits.max_tokens > 0 else 0))

    def _refuse_score(self, msg: Score, prefix: _Prefix) -> Refusal | None:
        context = (len(prefix.ids) + len(msg.ids)) // ID_BYTES
        if context < 1:
            return Refusal("invalid_request", "a score needs at least one id in front of the continuations")
        if not msg.continuations or any(not c or len(c) % ID_BYTES for c in msg.continuations):
            return Refusal("invalid_request", "a score needs continuations of at least one int32 id each")
        total = context + max(len(c) for c in msg.continuations) // ID_BYTES
        return self._refuse(msg, len(msg.continuations), total, total)

    def _refuse(self, msg: Submit | Score, rows: int, total: int, needed: int) -> Refusal | None:
        books, config = self._books, self._books.config
        if books.draining:
            return Refusal("draining", "the server is shutting down and takes no new requests; send it to another one")
        if msg.remaining_ms == 0:
            return Refusal("timeout", "the request's time was over before it arrived: 0 ms remain")
        if len(books.queue) + rows > config.max_queued:
            return Refusal(
                "queue_full",
                f"{len(books.queue)} branches are queued and {rows} more asked for, the limit is {config.max_queued}; "
                "try again later or raise --max-queued",
            )
        if config.context and needed > config.context:
            return Refusal(
                "context_length_exceeded",
                f"the prompt has {total} tokens, the context is {config.context}, one of it for the answer; "
                "shorten the prompt or choose a model with a longer context",
            )
        if books.memory is not None and total > books.memory.tokens:
            return Refusal(
                "pool_too_small",
                f"the prompt has {total} tokens, the KV pool holds {books.memory.tokens}; "
                "shorten it or give a larger --kv-tokens",
            )
        return None

    def _max_tokens(self, n_prompt: int, asked: int) -> int:
        """Generation ends with ``length`` where the context or the pool does."""
        books = self._books
        room = asked
        if books.config.context:
            room = min(room, books.config.context - n_prompt)
        if books.memory is not None and asked > 0:
            room = min(room, books.memory.tokens + 1 - n_prompt)
        return max(room, 0)

    def _reject(self, client: bytes, msg_id: int, refusal: Refusal) -> None:
        self._books.counters.rejected += 1
        self._books.emit(client, Rejected(msg_id, refusal.code, refusal.message))

    # ------------------------------------------------------------ what is made

    def _request(self, client: bytes, msg: Submit | Score, now: float) -> Request:
        books = self._books
        books.arrivals += 1
        deadline = now + msg.remaining_ms / 1000 if msg.remaining_ms > 0 else math.inf
        request = Request(
            client, msg.id, msg.namespace, msg.priority, books.arrivals, deadline, deadline_ms=msg.remaining_ms
        )
        books.requests[client, msg.id] = request
        return request

    def _add(self, request: Request, branch: Branch) -> None:
        branch.priority = request.priority
        request.branches.append(branch)
        request.open += 1
        self._books.register(branch)
        if branch.constraint_key:
            self._books.constraints.enter(branch.constraint_key)
        self._books.queue.shares.enter(request.namespace.tenant)
        if self._books.memory is not None and self._books.config.switches.order == "cache-aware":
            branch.cached_hint = self._books.memory.match(branch, bytes(branch.ids)).tokens
        self._books.queue.add(branch)

    def _adopt(self, branch: Branch, parent: Branch, at: int) -> None:
        branch.parent, branch.at = parent, at
        parent.unseated_children += 1

    def _inherit(self, branch: Branch, msg: Submit) -> None:
        """A resend goes on counting where the dead scheduler stopped."""
        branch.forced = sum(msg.forced)
        branch.sampled = branch.generated - branch.forced
        branch.inherited = msg.usage
        if msg.usage is not None and msg.usage.prompt:
            branch.high_water = branch.n_prompt
            branch.seated = True

    def _accept(self, request: Request) -> None:
        self._books.counters.accepted += 1
        self._books.emit(request.client, Accepted(request.id))


@dataclass(frozen=True, slots=True)
class _Prefix:
    ids: bytes
    parent: Branch | None
    at: int
