"""What `gen` and `select` do to their state. Everything here runs on the backend's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ramet.runtime.protocol.errors import InvalidRequest, Overloaded, RequestTimeout
from ramet.runtime.protocol.messages import Usage

from .backend import Branch, Delta, GenCall, Outcome
from .calls import CallRecord
from .expr import Gen, Select
from .gen_call import fill
from .meta import gen_meta, select_meta
from .options import DEFAULT_MAX_TOKENS, Options
from .slot import CallSlot
from .tool_loop import ToolLoop

if TYPE_CHECKING:
    from .core import StateCore

T = TypeVar("T")

SNIPPET = 12
"""Tokens shown of the place where a prompt stops being cached."""


def branch_of(core: StateCore) -> Branch:
    """Raises InvalidRequest where the parent failed before the fork."""
    if core.branch is None:
        raise InvalidRequest("this state has no branch: its parent failed before the fork")
    return core.branch


def gen_call(core: StateCore, expr: Gen[object] | Select) -> GenCall:
    """The call with run-level options and defaults filled in."""
    o = expr.options.over(core.run.options)
    constraint = expr.constraint if isinstance(expr, Gen) else None
    max_tokens = o.max_tokens
    if max_tokens is None and not (constraint is not None and constraint.whole):
        max_tokens = DEFAULT_MAX_TOKENS
    stop = o.stop or ()
    if core.open_message is not None:
        stop += tuple(s for s in core.run.backend.role_stops() if s not in stop)
    call = fill(o, max_tokens, stop, None if constraint is None else constraint.spec, branch_of(core).path)
    return replace(call, spec_tokens=core.run.spec_tokens) if core.run.spec_tokens else call


async def generate_with_tools(core: StateCore, expr: Gen[object], slot: CallSlot) -> None:
    assert expr.tools is not None
    begin = time.monotonic()

    async def one(call: GenCall) -> Outcome:
        nonlocal begin
        part = CallSlot(None)
        (outcome,) = await _generate(core, expr.options, call, part)
        _record(core, expr, outcome.usage, begin, outcome.text, outcome.reason, outcome)
        core.add_text(outcome.text, streamed=True)
        begin = time.monotonic()
        return outcome

    loop = ToolLoop(core, branch_of(core), gen_call(core, expr), expr.tools, one)
    outcome = await loop.run()
    meta = gen_meta(outcome, core.run.calls[-1])
    meta["tool_calls"], meta["rounds"] = loop.calls, loop.rounds
    slot.stream.append(outcome.text)
    slot.resolve(outcome.text, meta)


async def generate(core: StateCore, expr: Gen[object], slot: CallSlot) -> None:
    if expr.tools is not None:
        await generate_with_tools(core, expr, slot)
        return
    call = gen_call(core, expr)
    begin = time.monotonic()
    probe = call.max_tokens == 0 and call.logprobs >= 0
    if probe:
        outcomes = await _probe(core, call)
    else:
        outcomes = await _generate(core, expr.options, call, slot)
    first = outcomes[0]
    record = _record(core, expr, first.usage, begin, first.text, first.reason, first)
    texts = ["" if probe else outcome.text for outcome in outcomes]
    core.add_text(texts[0], streamed=True)
    many = call.n > 1

    def meta() -> Any:
        metas = [gen_meta(outcome, record) for outcome in outcomes]
        return metas if many else metas[0]

    slot.resolve(texts if many else texts[0], make_meta=meta)


async def _probe(core: StateCore, call: GenCall) -> list[Outcome]:
    """No new token is wanted, only the log-probabilities of the next one: draw it on a branch that is thrown away."""
    branch = branch_of(core).fork(call.path)
    try:
        # An end token may well be the likeliest: it counts like any other here.
        probe = replace(call, max_tokens=1, min_tokens=0, ignore_eos=True, stop=(), stop_token_ids=())
        return await branch.generate(probe, False, lambda _: None)
    finally:
        branch.close()


def _generate(
    core: StateCore, options: Options, call: GenCall, slot: CallSlot
) -> Coroutine[object, object, list[Outcome]]:
    seen = False

    def arrived(delta: Delta) -> None:
        nonlocal seen
        seen = True
        if delta.choice == 0:
            if delta.logprobs:
                slot.logprobs = slot.logprobs or []
                slot.logprobs.append((len(slot.stream.parts), delta.logprobs))
            slot.stream.append(delta.text)
            core.log.append(delta.text)

    work = branch_of(core).generate
    retries = options.over(core.run.options).retries or 0
    return _tried(lambda: work(call, core.will_go_on(), arrived), call, retries, lambda: not seen)


def _tried(
    work: Callable[[], Coroutine[object, object, T]], call: GenCall, retries: int, again: Callable[[], bool]
) -> Coroutine[object, object, T]:
    """Within the call's time, again where the backend was overloaded. Raises RequestTimeout."""
    if call.timeout_s is None and not retries:
        return work()  # ten thousand open calls hold no frame of ours
    return _limited(work, call, retries, again)


async def _limited(
    work: Callable[[], Coroutine[object, object, T]], call: GenCall, retries: int, again: Callable[[], bool]
) -> T:
    for attempt in range(retries + 1):
        try:
            return await asyncio.wait_for(work(), call.timeout_s)
        except asyncio.TimeoutError:
            raise RequestTimeout(f"not done within timeout_s={call.timeout_s:g}") from None
        except Overloaded:
            if attempt == retries or not again():
                raise
            await asyncio.sleep(min(5.0, 0.1 * 2**attempt))
    raise AssertionError("unreachable")


def _record(
    core: StateCore,
    expr: Gen[object] | Select,
    usage: Usage,
    begin: float,
    text: str,
    reason: str,
    first: Outcome | None,
) -> CallRecord:
    run, branch = core.run, branch_of(core)
    record = CallRecord(
        "gen" if isinstance(expr, Gen) else "select",
        expr.name,
        expr.where,
        usage,
        begin - run.started,
        time.monotonic() - run.started,
        text,
        reason,
        branch.path,
        branch.snippet(usage.cached, min(usage.cached + SNIPPET, usage.prompt)),
        branch.pieces(first) if first is not None else ((text, False),),
    )
    run.calls.append(record)
    return record


async def select(core: StateCore, expr: Select, slot: CallSlot) -> None:
    branch, method = branch_of(core), expr.method
    begin = time.monotonic()
    call = gen_call(core, expr)
    retries = expr.options.over(core.run.options).retries or 0
    unconditional = method.requires_unconditional_logprobs
    scores = await _tried(lambda: branch.score(expr.choices, unconditional, call), call, retries, lambda: True)
    tokens = [list(entries) for entries in scores.tokens]
    means = [sum(entry[0] for entry in entries) / max(1, len(entries)) for entries in tokens]
    decision = method(
        choices=list(expr.choices),
        normalized_prompt_logprobs=means,
        input_token_logprobs=tokens,
        output_token_logprobs=[[] for _ in tokens],
        unconditional_token_logprobs=None if scores.unconditional is None else [list(e) for e in scores.unconditional],
    )
    if decision.decision not in expr.choices:
        raise ValueError(f"the choices_method returned {decision.decision!r}, which is none of {list(expr.choices)}")
    winner = expr.choices.index(decision.decision)
    branch.take(scores, winner, decision.decision)
    record = _record(core, expr, scores.usage, begin, decision.decision, "choice", None)
    core.add_text(decision.decision)
    slot.stream.append(decision.decision)
    slot.resolve(decision.decision, select_meta(scores, means, decision, record))


async def score_branch(core: StateCore, after: str, choices: Sequence[str]) -> list[float]:
    """Log-probability of each choice if ``after`` and then the choice followed; nothing is appended."""
    branch = branch_of(core).fork(branch_of(core).path)
    try:
        branch.append(after)
        call = fill(core.run.options, None, (), None, branch.path)
        scores = await branch.score(choices, False, call)
    finally:
        branch.close()
    return [sum(entry[0] for entry in entries) for entries in scores.tokens]
