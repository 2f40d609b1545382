"""What each expression does to its state. Everything here runs on the backend's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramet.runtime.protocol.errors import InvalidRequest

from .execute_calls import branch_of
from .expr import Gen, Reasoning
from .ops import Op, OpenMessage
from .slot import CallSlot, Slot
from .tools import Tool

if TYPE_CHECKING:
    from .core import StateCore


async def text(core: StateCore, value: str) -> None:
    core.run.spend(len(value))
    branch_of(core).append(value)
    core.add_text(value)


async def show_tools(core: StateCore, tools: Sequence[Tool]) -> None:
    await text(core, core.run.backend.tools_text([tool.schema for tool in tools]))
    core.tools = core.tools.union(tool.name for tool in tools)


async def deferred(core: StateCore, pieces: Sequence[str | tuple[Slot, int]]) -> None:
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        slot, item = piece
        await slot.wait()
        try:
            value = slot.value()
        except Exception:
            # The body ends where it reads this value, with the value's error, and cancels what it has begun.
            await asyncio.get_running_loop().create_future()
            raise
        quoted = str(value[item] if item >= 0 else value)
        core.run.spend(len(quoted))  # before they are joined
        texts.append(quoted)
    await text(core, "".join(texts))


# ---------------------------------------------------------------- roles and scopes


async def role_begin(core: StateCore, role: str) -> None:
    first = not core.messages and not core.log.parts
    core.log.append(branch_of(core).role_begin(role, first))
    default = core.run.backend.default_system
    if first and role != "system" and default:
        core.messages.append({"role": "system", "content": default})
    core.open_message = OpenMessage(role)


async def role_end(core: StateCore, role: str) -> None:
    message, core.open_message = core.open_message, None
    if message is not None:
        core.messages.append({"role": role, "content": "".join(message.parts)})
    core.log.append(branch_of(core).role_end(role))


async def scope_begin(core: StateCore, slot: CallSlot) -> None:
    core.open_scopes = (*core.open_scopes, (slot, []))


async def scope_end(core: StateCore, slot: CallSlot) -> None:
    for index in range(len(core.open_scopes) - 1, -1, -1):
        if core.open_scopes[index][0] is slot:
            _, parts = core.open_scopes[index]
            core.open_scopes = (*core.open_scopes[:index], *core.open_scopes[index + 1 :])
            _close_scope(core, slot, parts)
            return


def _close_scope(core: StateCore, slot: CallSlot, parts: Sequence[str]) -> None:
    try:
        core.run.spend(sum(map(len, parts)))
    except InvalidRequest as error:
        slot.fail(error)
    else:
        slot.resolve("".join(parts), {})


# ---------------------------------------------------------------- forks, ends, compositions


async def end(core: StateCore) -> None:
    """Let go of the KV; close what is open; the text is complete."""
    if core.branch is not None:
        core.branch.close()
    for slot, parts in core.open_scopes:
        if not slot.done:
            _close_scope(core, slot, parts)
    core.open_scopes = ()
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
            text = await branch_of(core).append_since_fork(branch_of(child))
            core.run.spend(len(text))
            core.add_text(text)

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
