"""`Engine.generate`: plain prompts with sampling parameters, in dictionaries as users of SGLang know them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.engine_backend import EngineBackend
from ramet.frontend_lang.backend import Delta, GenCall, Outcome, Piece
from ramet.frontend_lang.calls import CallRecord
from ramet.frontend_lang.constraint import from_grammar, from_regex, from_schema
from ramet.frontend_lang.gen_call import fill
from ramet.frontend_lang.meta import gen_meta
from ramet.frontend_lang.options import DEFAULT_MAX_TOKENS, make_options
from ramet.frontend_lang.token_branch import TokenBranch
from ramet.frontend_lang.where import UNKNOWN
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.protocol.messages import ConstraintSpec

_BOUND = ("regex", "json_schema", "ebnf", "grammar")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: its text or its ids."""

    prompt: str | tuple[int, ...]
    call: GenCall


@dataclass(frozen=True, slots=True)
class Batch:
    """``many``: a list was given, and a list comes back."""

    requests: tuple[Request, ...]
    many: bool

    def single(self) -> Request:
        if self.many:
            raise InvalidRequest("stream=True takes one prompt, not a list of them")
        return self.requests[0]


def make_batch(
    prompt: str | Sequence[str] | None,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
    sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    return_logprob: bool,
    logprob_start_len: int,
    top_logprobs_num: int,
) -> Batch:
    """Raises InvalidRequest, TypeError and ValueError for what cannot be served."""
    if (prompt is None) == (input_ids is None):
        raise InvalidRequest("give either prompt (text) or input_ids", param="prompt")
    prompts: list[str | tuple[int, ...]]
    if prompt is not None:
        many = not isinstance(prompt, str)
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    else:
        given = list(input_ids or ())
        many = bool(given) and not isinstance(given[0], int)
        rows: list[Any] = given if many else [given]
        prompts = [tuple(int(token) for token in row) for row in rows]
    parameters: list[Mapping[str, Any]]
    if sampling_params is None or isinstance(sampling_params, Mapping):
        parameters = [sampling_params or {}] * len(prompts)
    else:
        parameters = list(sampling_params)
        if len(parameters) != len(prompts):
            raise InvalidRequest(f"{len(parameters)} sampling_params for {len(prompts)} prompts: give one for each")
    calls = [make_call(one, return_logprob, logprob_start_len, top_logprobs_num) for one in parameters]
    return Batch(tuple(Request(p, c) for p, c in zip(prompts, calls, strict=True)), many)


def make_call(parameters: Mapping[str, Any], logprob: bool, start: int, top: int) -> GenCall:
    """One call from a dict of sampling parameters. Raises TypeError for a name that is not known."""
    rest = {name: value for name, value in parameters.items() if name not in _BOUND}
    if logprob or top:
        rest |= {"return_logprob": True, "top_logprobs_num": top, "logprob_start_len": start}
    o = make_options(rest, "generate")
    spec = _constraint({name: parameters[name] for name in _BOUND if parameters.get(name) is not None})
    unbounded = spec is not None and spec.kind != "regex"
    max_tokens = o.max_tokens if o.max_tokens is not None or unbounded else DEFAULT_MAX_TOKENS
    return fill(o, max_tokens, o.stop or (), spec)


def _constraint(given: Mapping[str, Any]) -> ConstraintSpec | None:
    if not given:
        return None
    if len(given) > 1:
        raise ValueError(f"a text can be bound by one thing at a time, got {' and '.join(given)}")
    ((name, value),) = given.items()
    if name == "regex":
        return from_regex(value).spec
    return from_schema(value)[0].spec if name == "json_schema" else from_grammar(value).spec


async def run_batch_of(backend: EngineBackend, batch: Batch) -> Any:
    results = await asyncio.gather(*(_one(backend, request) for request in batch.requests))
    return results if batch.many else results[0]


async def _branch(backend: EngineBackend, request: Request) -> TokenBranch:
    branch = TokenBranch(backend)
    if isinstance(request.prompt, str):
        branch.ids.extend(await backend.encode([Piece(request.prompt)], start=True))
    else:
        branch.ids.extend(request.prompt)
    return branch


async def _one(backend: EngineBackend, request: Request) -> Any:
    branch = await _branch(backend, request)
    outcomes = await branch.generate(request.call, False, lambda _: None)
    results = [_result(outcome) for outcome in outcomes]
    return results if request.call.n > 1 else results[0]


def _result(outcome: Outcome) -> dict[str, Any]:
    record = CallRecord("gen", None, UNKNOWN, outcome.usage, 0.0, 0.0, outcome.text, outcome.reason)
    return {"text": outcome.text, "output_ids": list(outcome.ids), "meta_info": gen_meta(outcome, record)}


async def stream_of(backend: EngineBackend, request: Request) -> AsyncIterator[dict[str, Any]]:
    """Dicts with the text so far; the last one has the meta information."""
    if request.call.n > 1:
        raise InvalidRequest("stream=True gives one text: n must be 1", param="n")
    branch = await _branch(backend, request)
    queue: asyncio.Queue[Delta | None] = asyncio.Queue()
    task = asyncio.ensure_future(branch.generate(request.call, False, queue.put_nowait))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    text = ""
    try:
        while (delta := await queue.get()) is not None:
            text += delta.text
            yield {"text": text, "meta_info": {}}
        yield _result((await task)[0])
    finally:
        task.cancel()
