"""POST /v1/completions: prompts as text or ids, one or many; ``echo`` with log-probabilities of the prompt."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson
from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import ChoiceResult, Chunk, Finish
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.messages import TokenLogprob
from starlette.requests import Request
from starlette.responses import Response

from .constraints import Asked, asked_constraint
from .errors import HttpError, bad_request, translate
from .fields import CompletionBody, parse
from .logprobs import CompletionLogprobs, TokenNames, prompt_entries
from .lower import lower
from .merge import merged, together
from .prompts import Prompt, check_count, read_prompts
from .server import FINISH_REASONS, Server, failure, new_id, read_body, usage_json, watcher, watching
from .sse import DONE, ChunkWriter, EventStream, chunk_writer, event
from .visible import visible

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True)
class CompletionCall:
    """One request: a generation per prompt. Choice k of prompt p has index p * n + k."""

    server: Server
    generations: list[Generation]
    prompts: list[Prompt]
    n: int
    echo: bool
    logprobs: int
    """Alternatives wanted of each token; -1: no log-probabilities."""
    prompt_logprobs: int
    token_ids: bool
    names: TokenNames
    constraint_param: str | None
    head: dict[str, Any]

    def cancel(self) -> None:
        for generation in self.generations:
            generation.cancel()

    def error(self, error: RametError) -> HttpError:
        return translate(error, constraint_param=self.constraint_param)


async def completions(server: Server, request: Request, tenant: str) -> Response:
    body = parse(CompletionBody, await read_body(request))
    server.check_model(body.model)
    ignored = body.ignored()
    headers = {"x-ramet-ignored": ", ".join(ignored)} if ignored else {}
    call = await _start(server, body, tenant)
    if body.stream:
        watch = watcher(request, call.cancel)
        try:
            await together([generation.accepted() for generation in call.generations])
        except RametError as error:
            watch.cancel()
            call.cancel()
            raise call.error(error) from error
        writer = chunk_writer(call.head, body)
        return EventStream(_stream(call, writer, watch.cancel), headers)
    async with watching(request, call.cancel):
        try:
            results = await together([generation.result() for generation in call.generations])
        except RametError as error:
            raise call.error(error) from error
        finally:
            call.cancel()
    return Response(orjson.dumps(_whole(call, results)), 200, headers, "application/json")


async def _start(server: Server, body: CompletionBody, tenant: str) -> CompletionCall:
    if body.stream_options is not None and body.stream_options.include_partial:
        raise bad_request("stream_options.include_partial is a field of /v1/chat/completions", "stream_options")
    asked: Asked | None = asked_constraint(body)
    prompts = await read_prompts(
        server, body.prompt, special=body.add_special_tokens is not False, keep=body.truncate_prompt_tokens
    )
    check_count(len(prompts), body.n)
    echo, logprobs = bool(body.echo), -1 if body.logprobs is None else body.logprobs
    if logprobs < -1:
        raise bad_request(f"logprobs is {logprobs}; 0 or more are possible", "logprobs")
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None and body.n_predict is None else body.max_tokens
    param = asked.param if asked is not None else None
    generations: list[Generation] = []
    try:
        for prompt in prompts:
            lowered = lower(
                body,
                prompt.ids,
                defaults=server.defaults,
                max_tokens=limit,
                constraint=asked.spec if asked is not None else None,
                logprobs=logprobs,
                logits_from=0 if echo and logprobs >= 0 and len(prompt.ids) > 1 else -1,
                tenant=tenant,
            )
            generations.append(server.generate(lowered, constraint_param=param))
    except HttpError:
        for generation in generations:
            generation.cancel()
        raise
    head = {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": server.fingerprint,
    }
    return CompletionCall(
        server,
        generations,
        prompts,
        body.n or 1,
        echo,
        logprobs,
        -1 if body.prompt_logprobs is None else body.prompt_logprobs,
        bool(body.return_token_ids),
        server.token_numbers if body.return_tokens_as_token_ids else server.token_names,
        param,
        head,
    )


# ---------------------------------------------------------------- the whole answer


def _whole(call: CompletionCall, results: list[list[ChoiceResult]]) -> dict[str, Any]:
    flat = [result for group in results for result in group]
    finishes = [Finish(result.finish_reason, result.usage, result.stop, result.message) for result in flat]
    for finish in finishes:
        error = failure(finish)
        if error is not None:
            raise error
    choices = []
    for index, result in enumerate(flat):
        prompt, generation = call.prompts[index // call.n], call.generations[index // call.n]
        logprobs = None
        shown = visible(result.ids, result.n_prompt, result.stop, with_stop=generation.request.include_stop)
        if call.logprobs >= 0:
            writer = CompletionLogprobs(call.names, call.logprobs)
            ids: list[int] = result.ids[:shown]
            entries: list[TokenLogprob | None] = list((result.logprobs or [])[:shown])
            if call.echo:
                scored = result.prompt_logprobs or results[index // call.n][0].prompt_logprobs
                ids, entries = prompt.ids + ids, [None, *scored, *entries]
            logprobs = writer.piece(ids, entries)
        choice = {
            "index": index,
            "text": (prompt.text if call.echo else "") + result.text,
            "logprobs": logprobs,
            "finish_reason": FINISH_REASONS[result.finish_reason],
        }
        if call.token_ids:
            choice |= {"prompt_token_ids": prompt.ids, "token_ids": result.ids[:shown]}
        if call.prompt_logprobs >= 0:
            scored = generation.prompt_logprobs()
            choice["prompt_logprobs"] = prompt_entries(prompt.ids, scored, call.names, call.prompt_logprobs)
        choices.append(choice)
    return {**call.head, "choices": choices, "usage": usage_json([finish.usage for finish in finishes])}


# ---------------------------------------------------------------- the stream


class _ChoiceText:
    """One choice of a stream: the echoed prompt goes with its first chunk."""

    def __init__(self, call: CompletionCall, prompt: Prompt, generation: Generation) -> None:
        self._call = call
        self._prompt = prompt if call.echo else None
        self._prompt_ids = prompt.ids if call.token_ids else None
        self._generation = generation
        self._logprobs = CompletionLogprobs(call.names, call.logprobs) if call.logprobs >= 0 else None

    def chunk(self, writer: ChunkWriter, index: int, chunk: Chunk) -> bytes:
        text, ids = chunk.text, chunk.ids
        entries: list[TokenLogprob | None] = list(chunk.logprobs or ())
        finish = chunk.finish
        with_stop = self._generation.request.include_stop
        shown = visible(ids, chunk.offset, finish.stop if finish is not None else None, with_stop=with_stop)
        ids, entries = ids[:shown], entries[:shown]
        more = self._ids(ids) if self._call.token_ids else b""
        if self._prompt is not None:
            text = self._prompt.text + text
            if self._logprobs is not None:
                scored = self._generation.prompt_logprobs(chunk.choice)
                ids, entries = self._prompt.ids + ids, [None, *scored, *entries]
            self._prompt = None
        reason = b"null" if finish is None else b'"%b"' % FINISH_REASONS[finish.reason].encode()
        if not text and finish is None and not more and (self._logprobs is None or not ids):
            return b""
        logprobs = b"null" if self._logprobs is None else orjson.dumps(self._logprobs.piece(ids, entries))
        return writer.text(index, orjson.dumps(text), logprobs, reason, more)

    def _ids(self, ids: list[int]) -> bytes:
        more = b',"token_ids":' + orjson.dumps(ids) if ids else b""
        if self._prompt_ids is not None:
            more += b',"prompt_token_ids":' + orjson.dumps(self._prompt_ids)
            self._prompt_ids = None
        return more


async def _stream(call: CompletionCall, writer: ChunkWriter, end: Any) -> AsyncIterator[bytes]:
    try:
        streams = [
            _ChoiceText(call, prompt, generation)
            for prompt, generation in zip(call.prompts, call.generations, strict=True)
            for _ in range(call.n)
        ]
        finishes: list[Finish] = []
        async for news in merged(call.generations):
            if writer.progress:
                writer.so_far(usage_json([usage for one in call.generations for usage in one.usages()]))
            out: list[bytes] = []
            for at, chunk in news:
                if chunk.finish is not None:
                    finishes.append(chunk.finish)
                    error = failure(chunk.finish)
                    if error is not None:
                        yield b"".join([*out, event(error.body()), DONE])
                        return
                index = at * call.n + chunk.choice
                out.append(streams[index].chunk(writer, index, chunk))
            if data := b"".join(out):
                yield data
        if writer.with_usage:
            yield writer.usage(usage_json([finish.usage for finish in finishes]))
        yield DONE
    except RametError as error:
        yield event(call.error(error).body()) + DONE
    finally:
        end()
        call.cancel()
