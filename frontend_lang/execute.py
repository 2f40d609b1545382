"""What each expression does to its state. Everything here runs on the backend's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ramet.runtime.protocol.errors import InvalidRequest, Overloaded
from ramet.runtime.protocol.messages import Usage

from .backend import Branch, Delta, GenCall, Outcome
from .calls import CallRecord
from .expr import Gen, Reasoning, Select
from .gen_call import fill
from .meta import gen_meta, select_meta
from .ops import Op, OpenMessage
from .options import DEFAULT_MAX_TOKENS, Options
from .slot import CallSlot, Slot
from .tool_loop import ToolLoop
from .tools import Tool

if TYPE_CHECKING:
    from .core import StateCore

SNIPPET = 12
"""Tokens shown of the place where a prompt stops being cached."""


def _branch(core: StateCore) -> Branch:
    if core.branch is None:
        raise InvalidRequest("this state has no branch: its parent failed before the fork")
    return core.branch


async def text(core: StateCore, value: str) -> None:
    _branch(core).append(value)
    core.add_text(value)


async def deferred(core: StateCore, pieces: Sequence[str | tuple[Slot, int]]) -> None:
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        slot, item = piece
        await slot.wait()
        value = slot.value()
        texts.append(str(value[item] if item >= 0 else value))
    await text(core, "".join(texts))


# ---------------------------------------------------------------- roles and scopes


async def role_begin(core: StateCore, role: str) -> None:
    first = not core.messages and not core.log.parts
    core.log.append(_branch(core).role_begin(role, first))
    default = core.run.backend.default_system
    if first and role != "system" and default:
        core.messages.append({"role": "system", "content": default})
    core.open_message = OpenMessage(role)


async def role_end(core: StateCore, role: str) -> None:
    message, core.open_message = core.open_message, None
    if message is not None:
        core.messages.append({"role": role, "content": "".join(message.parts)})
    core.log.append(_branch(core).role_end(role))


async def scope_begin(core: StateCore, slot: CallSlot) -> None:
    core.open_scopes.append((slot, []))


async def scope_end(core: StateCore, slot: CallSlot) -> None:
    for index in range(len(core.open_scopes) - 1, -1, -1):
        if core.open_scopes[index][0] is slot:
            _, parts = core.open_scopes.pop(index)
            slot.resolve("".join(parts), {})
            return


# ---------------------------------------------------------------- generating


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
    call = fill(o, max_tokens, stop, None if constraint is None else constraint.spec, _branch(core).path)
    return replace(call, spec_tokens=core.run.spec_tokens) if core.run.spec_tokens else call


async def show_tools(core: StateCore, tools: Sequence[Tool]) -> None:
    await text(core, core.run.backend.tools_text([tool.schema for tool in tools]))
    core.tools.update(tool.name for tool in tools)


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

    loop = ToolLoop(core, _branch(core), gen_call(core, expr), expr.tools, one)
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
    metas = [gen_meta(outcome, record) for outcome in outcomes]
    many = call.n > 1
    slot.resolve(texts if many else texts[0], metas if many else metas[0])


async def _probe(core: StateCore, call: GenCall) -> list[Outcome]:
    """No new token is wanted, only the log-probabilities of the next one: draw it on a branch that is thrown away."""
    branch = _branch(core).fork(call.path)
    try:
        return await branch.generate(replace(call, max_tokens=1, min_tokens=0), False, lambda _: None)
    finally:
        branch.close()


async def _generate(core: StateCore, options: Options, call: GenCall, slot: CallSlot) -> list[Outcome]:
    seen = False

    def arrived(delta: Delta) -> None:
        nonlocal seen
        seen = True
        if delta.choice == 0:
            slot.logprobs.append((len(slot.stream.parts), delta.logprobs))
            slot.stream.append(delta.text)
            core.log.append(delta.text)

    retries = options.over(core.run.options).retries or 0
    work = _branch(core).generate
    for attempt in range(retries + 1):
        try:
            running = work(call, core.will_go_on(), arrived)
            return await (running if call.timeout_s is None else asyncio.wait_for(running, call.timeout_s))
        except asyncio.TimeoutError:
            raise TimeoutError(f"not done within timeout_s={call.timeout_s:g}") from None
        except Overloaded:
            if seen or attempt == retries:
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
    run, branch = core.run, _branch(core)
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
    branch, method = _branch(core), expr.method
    begin = time.monotonic()
    call = gen_call(core, expr)
    scores = await branch.score(expr.choices, method.requires_unconditional_logprobs, call)
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
    branch = _branch(core).fork(_branch(core).path)
    try:
        branch.append(after)
        call = fill(core.run.options, None, (), None, branch.path)
        scores = await branch.score(choices, False, call)
    finally:
        branch.close()
    return [sum(entry[0] for entry in entries) for entries in scores.tokens]


# ---------------------------------------------------------------- forks, ends, compositions


async def end(core: StateCore) -> None:
    """Let go of the KV; close what is open; the text is complete."""
    if core.branch is not None:
        core.branch.close()
    for slot, parts in core.open_scopes:
        if not slot.done:
            slot.resolve("".join(parts), {})
    core.open_scopes.clear()
    core.log.end()


def fork_op(children: Sequence[StateCore], ordinal: int) -> Op:
    async def work(core: StateCore) -> None:
        for index, child in enumerate(children):
            branch = core.branch
            child.unblock(None if branch is None else branch.fork((*branch.path, ordinal, index)), core)

    return Op(work, always=True)


def concatenate_op(children: Sequence[StateCore]) -> Op:
    async def work(core: StateCore) -> None:
        for child in children:
            await child.settled()
            if child.error is not None:
                raise child.error
            core.add_text(await _branch(core).append_since_fork(_branch(child)))

    return Op(work)


async def sequence(core: StateCore, ops: Sequence[Op]) -> None:
    for op in ops:
        await op.work(core)


def reasoning_op(core: StateCore, expr: Reasoning) -> Op:
    """The body's calls run as they are; then the reasoning is split off each variable."""
    gens = [part for part in expr.body.parts() if isinstance(part, Gen) and part.name is not None]
    ops = [core.plan(part) for part in expr.body.parts()]
    slots = tuple(slot for op in ops for slot in op.slots)
    extra = [CallSlot(f"{part.name}_reasoning_content", part.where) for part in gens]
    final = [CallSlot(part.name, part.where, part.parse) for part in gens]
    for part, slot, whole in zip(gens, extra, final, strict=True):
        assert part.name is not None and slot.name is not None
        core.declare(slot.name, slot)
        core.declare(part.name, whole)
        core.declared[part] = whole

    async def work(target: StateCore) -> None:
        await sequence(target, ops)
        inner = [slot for slot in slots if slot.name is not None and any(slot.name == g.name for g in gens)]
        for raw, reasoning, answer in zip(inner, extra, final, strict=True):
            thought, rest = split_reasoning(raw.value(), expr.open, expr.close)
            reasoning.resolve(thought, raw.meta())
            answer.stream.append(rest)
            answer.resolve(rest, raw.meta())

    return Op(work, (*slots, *extra, *final), expr.where)


def split_reasoning(value: str, open_tag: str, close_tag: str) -> tuple[str, str]:
    """(reasoning, answer). Without a closing tag, all of a text that was opened is reasoning, else all is answer."""
    head, found, rest = value.partition(close_tag)
    opened = head.lstrip().startswith(open_tag)
    if not found and not opened:
        return "", value
    thought = head.lstrip()[len(open_tag) :] if opened else head
    return thought.strip("\n"), rest.lstrip("\n") if found else ""
