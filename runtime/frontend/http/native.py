"""POST /generate, in the shape that SGLang's users know: streamed text is cumulative, log-probabilities are triples.

input_token_logprobs    [logprob, id, text or null] of the prompt from ``logprob_start_len`` on; the first is null
output_token_logprobs   the same of what was generated; ``output_top_logprobs``: a list of them for each id
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import Chunk, Finish
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.messages import Namespace, TokenLogprob
from starlette.requests import Request
from starlette.responses import Response

from .constraints import Asked, Found, structural_tag
from .errors import HttpError, bad_request, translate
from .fields import Body, SamplingFields, parse
from .logprobs import TokenNames, finite
from .lower import sampling
from .merge import merged, together
from .prompts import check_count, read_prompts
from .server import Server, failure, new_id, read_body, watcher, watching
from .sse import DONE, EventStream, event
from .visible import visible

DEFAULT_MAX_TOKENS = 128


class SamplingParams(SamplingFields):
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    sampling_seed: int | None = None
    no_stop_trim: bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | dict[str, Any] | None = None
    structural_tag: str | dict[str, Any] | None = None


class GenerateBody(Body):
    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: SamplingParams | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    rid: str | None = None
    cache_salt: str | None = None
    priority: int | None = None


class AbortBody(Body):
    """``rid``: exactly the id that a request was given."""

    rid: str | None = None
    abort_all: bool | None = None


@dataclass
class _Choice:
    """What one choice has come to."""

    prompt: list[int]
    generation: Generation
    rid: str
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None


@dataclass(frozen=True)
class NativeCall:
    server: Server
    body: GenerateBody
    generations: list[Generation]
    choices: list[_Choice]
    n: int
    single: bool
    """One prompt was given by itself: without n, the answer is no list."""
    began: float

    def cancel(self) -> None:
        """Whatever still runs; nobody can abort it by name any more."""
        for choice in self.choices:
            choice.generation.cancel()
            self.server.named.discard((choice.rid, choice.generation))

    def take(self, at: int, chunk: Chunk) -> int:
        """Book news of prompt ``at``; the number of the choice."""
        index = at * self.n + chunk.choice
        choice = self.choices[index]
        stop = chunk.finish.stop if chunk.finish is not None else None
        shown = visible(chunk.ids, chunk.offset, stop, with_stop=choice.generation.request.include_stop)
        choice.text += chunk.text
        choice.ids += chunk.ids[:shown]
        choice.logprobs += (chunk.logprobs or [])[:shown]
        choice.finish = chunk.finish
        return index


async def generate(server: Server, request: Request, tenant: str) -> Response:
    body = parse(GenerateBody, await read_body(request))
    params = body.sampling_params or SamplingParams()
    ignored = sorted({*body.ignored(), *params.ignored()})
    headers = {"x-ramet-ignored": ", ".join(ignored)} if ignored else {}
    call = await _start(server, body, params, tenant)
    if body.stream:
        watch = watcher(request, call.cancel)
        try:
            await together([generation.accepted() for generation in call.generations])
        except RametError as error:
            watch.cancel()
            call.cancel()
            raise translate(error, prompt_param="text", constraint_param="sampling_params") from error
        return EventStream(_stream(call, watch), headers)
    async with watching(request, call.cancel):
        try:
            async for news in merged(call.generations):
                for at, chunk in news:
                    call.take(at, chunk)
        except RametError as error:
            raise translate(error, prompt_param="text", constraint_param="sampling_params") from error
        finally:
            call.cancel()
    for choice in call.choices:
        assert choice.finish is not None
        failed = failure(choice.finish)
        if failed is not None:
            raise failed
    answers = [_answer(call, index) for index in range(len(call.choices))]
    whole = answers[0] if call.single and call.n == 1 else answers
    return Response(orjson.dumps(whole), 200, headers, "application/json")


async def _start(server: Server, body: GenerateBody, params: SamplingParams, tenant: str) -> NativeCall:
    if (body.text is None) == (body.input_ids is None):
        raise bad_request("give either text or input_ids", "text")
    given = body.text if body.text is not None else body.input_ids
    assert given is not None
    prompts = await read_prompts(server, given)
    check_count(len(prompts), params.n)
    wants = bool(body.return_logprob)
    first = -1 if body.logprob_start_len is None else body.logprob_start_len
    drawn = sampling(params, server.defaults, "sampling_params.")
    asked = _constraint(params)
    generations: list[Generation] = []
    try:
        for prompt in prompts:
            generations.append(
                server.generate(
                    replace(
                        drawn,
                        ids=prompt.ids,
                        max_tokens=DEFAULT_MAX_TOKENS if params.max_new_tokens is None else params.max_new_tokens,
                        min_tokens=drawn.min_tokens if params.min_new_tokens is None else params.min_new_tokens,
                        seed=drawn.seed if drawn.seed is not None else params.sampling_seed,
                        include_stop=drawn.include_stop or bool(params.no_stop_trim),
                        constraint=None if asked is None else asked.spec,
                        logprobs=(body.top_logprobs_num or 0) if wants else -1,
                        logits_from=first if wants and 0 <= first < len(prompt.ids) - 1 else -1,
                        priority=body.priority or 0,
                        namespace=Namespace(tenant=tenant, salt=body.cache_salt or ""),
                    ),
                    prompt_param="text",
                    constraint_param="sampling_params",
                )
            )
    except HttpError:
        for generation in generations:
            generation.cancel()
        raise
    n = params.n or 1
    choices = [
        _Choice(prompt.ids, generation, body.rid or new_id(""))
        for prompt, generation in zip(prompts, generations, strict=True)
        for _ in range(n)
    ]
    server.named.update((choice.rid, choice.generation) for choice in choices)
    single = isinstance(given, str) or isinstance(given[0], int)
    return NativeCall(server, body, generations, choices, n, single, time.perf_counter())


def _constraint(params: SamplingParams) -> Asked | None:
    found, place = Found(), "sampling_params."
    found.regex(f"{place}regex", params.regex)
    found.grammar(f"{place}ebnf", params.ebnf)
    found.schema(f"{place}json_schema", params.json_schema)
    if params.structural_tag is not None:
        structural_tag(found, f"{place}structural_tag", params.structural_tag)
    return found.one()


# ---------------------------------------------------------------- answers


def _answer(call: NativeCall, index: int) -> dict[str, Any]:
    """The choice as it stands: also a stream's events hold everything so far."""
    choice = call.choices[index]
    generation = choice.generation
    meta: dict[str, Any] = {
        "id": choice.rid,
        "finish_reason": _reason(choice),
        "prompt_tokens": len(choice.prompt),
        "completion_tokens": choice.finish.usage.completion if choice.finish is not None else len(choice.ids),
        "cached_tokens": generation.cached_tokens,
        "e2e_latency": time.perf_counter() - call.began,
    }
    if choice.finish is not None:
        meta["forced_tokens"] = choice.finish.usage.forced
    if call.body.return_logprob:
        meta |= _logprobs(call, choice, index % call.n)
    return {"text": choice.text, "output_ids": choice.ids, "meta_info": meta}


def _reason(choice: _Choice) -> dict[str, Any] | None:
    finish = choice.finish
    if finish is None:
        return None
    if finish.reason == "length":
        return {"type": "length", "length": finish.usage.completion}
    if finish.reason == "stop" and finish.stop is not None:
        which, request = finish.stop.which, choice.generation.request
        return {"type": "stop", "matched": request.stop[which] if which >= 0 else request.stop_ids[-1 - which]}
    return {"type": "stop"}


def _logprobs(call: NativeCall, choice: _Choice, number: int) -> dict[str, Any]:
    names, texts = call.server.token_names, bool(call.body.return_text_in_logprobs)
    first = call.body.logprob_start_len
    prompt: list[Any] = []
    tops: list[Any] = []
    if first is not None and 0 <= first < len(choice.prompt):
        scored: Sequence[TokenLogprob | None] = [None, *choice.generation.prompt_logprobs(number)]
        for token, entry in zip(choice.prompt[first:], scored, strict=False):
            prompt.append(_triple(None if entry is None else entry.raw, token, names, texts))
            tops.append(None if entry is None else [_triple(value, id, names, texts) for id, value in entry.top])
    result: dict[str, Any] = {
        "input_token_logprobs": prompt,
        "output_token_logprobs": [
            _triple(entry.raw, token, names, texts) for token, entry in zip(choice.ids, choice.logprobs, strict=True)
        ],
    }
    if call.body.top_logprobs_num:
        result["input_top_logprobs"] = tops
        result["output_top_logprobs"] = [
            [_triple(value, token, names, texts) for token, value in entry.top] for entry in choice.logprobs
        ]
    return result


def _triple(value: float | None, token: int, names: TokenNames, texts: bool) -> list[Any]:
    return [None if value is None else finite(value), token, names.text(token) if texts else None]


async def _stream(call: NativeCall, watch: asyncio.Task[None]) -> AsyncIterator[bytes]:
    try:
        async for news in merged(call.generations):
            changed: dict[int, None] = {}
            for at, chunk in news:
                changed[call.take(at, chunk)] = None
                failed = failure(chunk.finish) if chunk.finish is not None else None
                if failed is not None:
                    yield event(failed.body()) + DONE
                    return
            yield b"".join([event({**_answer(call, index), "index": index}) for index in changed])
        yield DONE
    except RametError as error:
        yield event(translate(error, prompt_param="text").body()) + DONE
    finally:
        watch.cancel()
        call.cancel()
