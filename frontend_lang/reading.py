"""Reading from a state: waiting, errors, streams. Called from user threads and from other event loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from .core import StateCore
from .errors import ProgramCancelled, UnknownVariable
from .expr import Expr
from .slot import CallSlot, Slot


def find(core: StateCore, name: str | Expr) -> Slot:
    """The finished slot of a name; waits. Raises UnknownVariable once it is clear that the name will not come."""
    slot = core.declared.get(name)
    if slot is None:
        if core.run.may_declare() and not core.run.backend.loop.closed:
            core.run.backend.loop.wait(declared(core, name))
        slot = core.declared.get(name)
        if slot is None:
            raise _unknown(core, name)
    if not slot.done:
        core.run.backend.loop.wait(slot.wait())
    return slot


async def find_async(core: StateCore, name: str | Expr) -> Slot:
    """`find` on the core's own loop."""
    if core.run.may_declare():
        await declared(core, name)
    slot = core.declared.get(name)
    if slot is None:
        raise _unknown(core, name)
    await slot.wait()
    return slot


async def declared(core: StateCore, name: object) -> None:
    """Wait until the name is declared, or can't be any more. Loop only."""
    while name not in core.declared and not core.run.body_done:
        await core.declarations.wait()


def error_of(core: StateCore) -> BaseException | None:
    """What went wrong so far, if anything did: the cause before what was cancelled because of it."""
    if core.error is None or isinstance(core.error, ProgramCancelled):
        return core.run.body_error or core.error
    return core.error


def _unknown(core: StateCore, name: object) -> BaseException:
    names = ", ".join(repr(key) for key in list(core.declared) if isinstance(key, str)) or "none"
    what = repr(name) if isinstance(name, str) else f"the given {type(name).__name__}"
    error = error_of(core)
    if error is not None:
        return error
    return UnknownVariable(
        f"program {core.run.program!r} has no variable {what} here; it has: {names}",
        program=core.run.program,
        variable=name if isinstance(name, str) else None,
    )


def settle(core: StateCore) -> None:
    """Wait for everything appended so far; raises the error of the state or its body."""
    error = own_error(core)
    if error is not None:
        raise error


async def _settled(core: StateCore) -> None:
    if core.run.may_declare():
        await await_body_end(core)
    await core.settled()


async def await_body_end(core: StateCore) -> None:
    """Where the body runs elsewhere (a stream), all of it counts. Loop only."""
    while not core.run.body_done:
        await core.declarations.wait()


def await_body(core: StateCore) -> None:
    if core.run.may_declare() and not core.run.backend.loop.closed:
        core.run.backend.loop.wait(await_body_end(core))


def own_error(core: StateCore) -> BaseException | None:
    """The first error of a state and its body; waits."""
    loop = core.run.backend.loop
    if not loop.closed and (not core.idle or core.run.may_declare()):
        loop.wait(_settled(core))
    return error_of(core)


def first_error(core: StateCore) -> BaseException | None:
    """The first error of a state, its body, and the branches joined into it; waits."""
    own = own_error(core)
    if own is not None:
        return own
    for child in core.children:
        error = first_error(child)
        if error is not None:
            return error
    return None


# ---------------------------------------------------------------- streams


def text_iter(core: StateCore, name: str | None) -> Iterator[str]:
    loop = core.run.backend.loop
    log = core.log
    if name is not None:
        if not loop.closed and core.run.may_declare():
            loop.wait(declared(core, name))
        if name not in core.declared:
            raise _unknown(core, name)
        log = _stream(core.declared[name])
    place = 0
    while True:
        if loop.closed or place < len(log.parts) or log.ended:
            stop = len(log.parts)
            text, place = "".join(log.parts[place:stop]), stop
        else:
            text, place = loop.wait(log.read(place))
        if text:
            yield text
        elif place >= len(log.parts):
            break
    _raise_after(core, name)


def _stream(slot: Slot) -> Any:
    stream = getattr(slot, "stream", None)
    if stream is None:
        raise TypeError("a joined variable has no stream of its own: iterate over the branches")
    return stream


def _raise_after(core: StateCore, name: str | None) -> None:
    if name is None:
        error = error_of(core)
        if error is not None:
            raise error
    else:
        slot = core.declared[name]
        if slot.done:
            slot.value()


async def text_async_iter(core: StateCore, name: str | None, with_meta: bool) -> AsyncIterator[Any]:
    loop = core.run.backend.loop
    if with_meta and name is None:
        raise ValueError("return_meta_data=True needs var_name: meta information belongs to one variable")
    log = core.log
    slot: Slot | None = None
    if name is not None:
        if core.run.may_declare():
            await loop.join(declared(core, name))
        if name not in core.declared:
            raise _unknown(core, name)
        slot = core.declared[name]
        log = _stream(slot)
    place = 0
    while True:
        start = place
        text, place = await loop.join(log.read(place))
        if not text and place == start:
            break
        if with_meta:
            yield text, _new_meta(slot, start, place)
        elif text:
            yield text
    _raise_after(core, name)


def _new_meta(slot: Slot | None, start: int, stop: int) -> dict[str, Any]:
    """Log-probabilities of the parts [start, stop) of a variable's stream alone; counts are of all parts so far."""
    if not isinstance(slot, CallSlot):
        return {}
    meta: dict[str, Any] = dict(slot.meta() or {}) if slot.done else {}
    for name in ("output_token_logprobs", "output_top_logprobs"):
        meta.pop(name, None)
    known = slot.logprobs
    if known:
        entries = [entry for part, new in known if start <= part < stop for entry in new]
        meta["output_token_logprobs"] = [entry for entry, _ in entries]
        meta["output_top_logprobs"] = [top for _, top in entries]
        count = sum(len(new) for part, new in known if part < stop)
        meta["output_token_logprobs_length"] = meta["completion_tokens"] = count
    return meta
