"""POST /completion, in llama.cpp's own shape, and what its clients ask for beside it.

Fields that are not given are the model's own, where its makers said some, else llama.cpp's: temperature 0.8, top_k 40,
top_p 0.95, min_p 0.05; and no limit of tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ramet.runtime.frontend.requests import Chunk, Finish
from ramet.runtime.protocol.messages import Namespace, TokenLogprob
from starlette.requests import Request
from starlette.responses import Response

from .constraints import Found
from .errors import bad_request
from .fields import SamplingFields, parse
from .logprobs import finite
from .lower import sampling
from .prompts import read_prompts
from .routes import json_response
from .server import Server, read_body
from .single import Single

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_ENDS = {"length": "limit", "end": "eos", "stop": "word"}


class LlamaCppBody(SamplingFields):
    prompt: str | list[int]
    n_predict: int | None = None
    max_tokens: int | None = None
    # pairs of a token, as id or text, and its bias or false, as well as OpenAI's form
    logit_bias: Any = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    n_probs: int | None = None
    return_tokens: bool | None = None
    cache_prompt: bool | None = None
    stream: bool | None = None


async def llamacpp_completion(server: Server, request: Request, tenant: str) -> Response:
    body = parse(LlamaCppBody, await read_body(request))
    ignored = body.ignored()
    headers = {"x-ramet-ignored": ", ".join(ignored)} if ignored else {}
    if body.n not in (None, 1):
        raise bad_request(f"n is {body.n}: /completion gives one answer; ask several times, or /v1/completions", "n")
    (prompt,) = await read_prompts(server, body.prompt)
    found = Found()
    found.grammar("grammar", body.grammar)
    found.schema("json_schema", body.json_schema)
    asked = found.one()
    limit = body.n_predict if body.n_predict is not None else body.max_tokens
    bias = _bias(server, body.logit_bias)
    drawn = sampling(body.model_copy(update={"logit_bias": None, "seed": None}), {**DEFAULTS, **server.defaults})
    lowered = replace(
        drawn,
        ids=prompt.ids,
        seed=body.seed if body.seed is not None and body.seed >= 0 else None,
        logit_bias=bias,
        max_tokens=limit if limit is not None and limit >= 0 else None,
        constraint=None if asked is None else asked.spec,
        logprobs=-1 if not body.n_probs else body.n_probs,
        namespace=Namespace(tenant=tenant),
    )
    param = asked.param if asked is not None else None
    call = Single(server, server.generate(lowered, constraint_param=param), ("prompt", param))
    writer = _Writer(call, body)
    if body.stream:
        return await call.stream(request, writer.events, headers)
    result = await call.result(request)
    finish = Finish(result.finish_reason, result.usage, result.stop, result.message)
    answer = {**writer.last(finish), "content": result.text, "tokens": result.ids if body.return_tokens else []}
    if body.n_probs:
        answer["completion_probabilities"] = writer.probabilities(result.ids, result.logprobs or [])
    reply = json_response(answer)
    reply.headers.update(headers)
    return reply


def llamacpp_props(server: Server) -> dict[str, Any]:
    """GET /props."""
    return {
        "default_generation_settings": {"n_ctx": server.client.context, "params": {**DEFAULTS, **server.defaults}},
        "total_slots": 1,
        "model_path": server.meta.name,
        "model_alias": server.names[0],
        "chat_template": server.meta.chat_template,
        "bos_token": server.meta.bos_token,
        "eos_token": server.meta.eos_token,
    }


def _bias(server: Server, given: Any) -> dict[int, float]:
    result: dict[int, float] = {}
    pairs = list(given.items()) if isinstance(given, dict) else [] if given is None else given
    if not isinstance(pairs, list):
        raise bad_request("logit_bias: a list of pairs, or an object, is needed", "logit_bias")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or type(pair[0]) not in (int, str):
            raise bad_request("logit_bias: pairs of a token (id or text) and its bias are needed", "logit_bias")
        token, value = pair
        if isinstance(token, str) and not (token.isascii() and token.isdigit() and len(token) < 10):
            ids = server.tokenizer.encode(token, follows="text")
        else:
            ids = [int(token)]
        if not isinstance(value, int | float):
            raise bad_request(f"logit_bias: {value!r} is no bias; give a number, or false to ban", "logit_bias")
        result |= dict.fromkeys(ids, -100.0 if value is False else float(value))
    return result


class _Writer:
    def __init__(self, call: Single, body: LlamaCppBody) -> None:
        self._call = call
        self._body = body
        self._count = 0

    def events(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        count = self._call.shown(chunk)
        self._count += count
        if chunk.text or count:
            piece: dict[str, Any] = {
                "index": 0,
                "content": chunk.text,
                "tokens": chunk.ids[:count],
                "stop": False,
                "id_slot": 0,
                "tokens_predicted": self._count,
                "tokens_evaluated": self._call.generation.n_prompt,
            }
            if self._body.n_probs:
                entries = (chunk.logprobs or [])[:count]
                piece["completion_probabilities"] = self.probabilities(chunk.ids[:count], entries)
            yield piece
        if chunk.finish is not None:
            yield {**self.last(chunk.finish), "content": "", "tokens": []}

    def last(self, finish: Finish) -> dict[str, Any]:
        generation, usage = self._call.generation, finish.usage
        request, now = generation.request, time.perf_counter()
        first = self._call.first or now
        word = request.stop[finish.stop.which] if finish.stop is not None and finish.stop.which >= 0 else ""
        prompt_s, drawn_s = first - self._call.began, now - first
        return {
            "index": 0,
            "id_slot": 0,
            "stop": True,
            "model": self._call.server.names[0],
            "tokens_predicted": usage.completion,
            "tokens_evaluated": generation.n_prompt,
            "tokens_cached": usage.cached,
            "truncated": False,
            "stop_type": _ENDS[finish.reason],
            "stopping_word": word,
            "generation_settings": {
                "n_predict": -1 if request.max_tokens is None else request.max_tokens,
                "temperature": request.temperature,
                "top_k": request.top_k,
                "top_p": request.top_p,
                "min_p": request.min_p,
                "repeat_penalty": request.repetition_penalty,
                "presence_penalty": request.presence_penalty,
                "frequency_penalty": request.frequency_penalty,
                "seed": -1 if request.seed is None else request.seed,
                "stop": list(request.stop),
                "ignore_eos": request.ignore_eos,
                "n_probs": max(0, request.logprobs),
            },
            "timings": {
                "prompt_n": usage.computed,
                "cache_n": usage.cached,
                "prompt_ms": 1000 * prompt_s,
                "predicted_n": usage.completion,
                "predicted_ms": 1000 * drawn_s,
            },
        }

    def probabilities(self, ids: list[int], entries: list[TokenLogprob]) -> list[dict[str, Any]]:
        return [
            {**self._one(token, entry.raw), "top_logprobs": [self._one(other, value) for other, value in entry.top]}
            for token, entry in zip(ids, entries, strict=True)
        ]

    def _one(self, token: int, value: float) -> dict[str, Any]:
        names = self._call.server.token_names
        return {"id": token, "token": names.text(token), "bytes": list(names.bytes(token)), "logprob": finite(value)}
