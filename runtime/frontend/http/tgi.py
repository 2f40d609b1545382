"""POST /generate with ``inputs``, /generate_stream and /, in the shape of Text Generation Inference.

As there: greedy unless something says otherwise, 100 tokens, and a stop sequence is part of the text that it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
from ramet.runtime.frontend.requests import Chunk, GenerateRequest
from ramet.runtime.protocol.messages import Namespace, TokenLogprob
from starlette.requests import Request
from starlette.responses import Response

from .constraints import Asked, Found
from .errors import bad_request
from .fields import Body, Part, parse
from .logprobs import finite
from .prompts import read_prompts
from .routes import json_response
from .server import Server
from .single import Single

DEFAULT_MAX_TOKENS = 100
_REASONS = {"length": "length", "end": "eos_token", "stop": "stop_sequence"}


class TgiGrammar(Part):
    type: str
    value: Any = None


class TgiParameters(Body):
    max_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    truncate: int | None = None
    return_full_text: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: int | None = None
    grammar: TgiGrammar | None = None
    watermark: bool | None = None


class TgiBody(Body):
    inputs: str
    parameters: TgiParameters | None = None
    stream: bool | None = None


def has_inputs(raw: bytes) -> bool:
    """Whether a body is one of TGI's. Bodies that are no JSON are not: their error is told by whoever parses them."""
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return False
    return isinstance(data, dict) and "inputs" in data


async def tgi_generate(server: Server, request: Request, raw: bytes, tenant: str, *, stream: bool | None) -> Response:
    """``stream`` None: as the body says, and the whole answer in a list, as the path / has it."""
    body = parse(TgiBody, raw)
    params = body.parameters or TgiParameters()
    ignored = sorted({*body.ignored(), *params.ignored()})
    headers = {"x-ramet-ignored": ", ".join(ignored)} if ignored else {}
    if params.watermark:
        raise bad_request("watermark is not supported here", "parameters.watermark", "unsupported_parameter")
    (prompt,) = await read_prompts(server, body.inputs, keep=params.truncate)
    asked = _constraint(params.grammar)
    lowered = replace(
        _sampling(params),
        ids=prompt.ids,
        constraint=None if asked is None else asked.spec,
        logits_from=0 if params.decoder_input_details and len(prompt.ids) > 1 else -1,
        namespace=Namespace(tenant=tenant),
    )
    param = asked.param if asked is not None else None
    call = Single(server, server.generate(lowered, prompt_param="inputs", constraint_param=param), ("inputs", param))
    before = prompt.text if params.return_full_text else ""
    if body.stream if stream is None else stream:
        return await call.stream(request, _Writer(call, params, before).events, headers)
    result = await call.result(request)
    answer: dict[str, Any] = {"generated_text": before + result.text}
    if params.details or params.decoder_input_details:
        details = _details(call, result.finish_reason, result.usage.completion)
        names = server.token_names
        scored: list[TokenLogprob | None] = [None, *result.prompt_logprobs]
        details["prefill"] = [
            {"id": token, "text": names.text(token), "logprob": None if entry is None else finite(entry.raw)}
            for token, entry in zip(prompt.ids, scored, strict=False)
            if params.decoder_input_details
        ]
        details["tokens"] = [
            _token(call, token, entry) for token, entry in zip(result.ids, result.logprobs or (), strict=True)
        ]
        if params.top_n_tokens:
            details["top_tokens"] = [_top(call, entry) for entry in result.logprobs or ()]
        answer["details"] = details
    reply = json_response([answer] if stream is None else answer)
    reply.headers.update(headers)
    return reply


def tgi_info(server: Server, version: str) -> dict[str, Any]:
    """GET /info."""
    return {
        "model_id": server.meta.name,
        "model_sha": server.client.fingerprint,
        "max_input_tokens": server.client.context - 1,
        "max_total_tokens": server.client.context,
        "version": version,
        "router": "ramet",
    }


def _sampling(params: TgiParameters) -> GenerateRequest:
    warped = params.temperature not in (None, 1.0) or params.top_k is not None or params.top_p is not None
    draws = bool(params.do_sample) or warped
    return GenerateRequest(
        [],
        temperature=(1.0 if params.temperature is None else params.temperature) if draws else 0.0,
        top_k=params.top_k or -1,
        top_p=1.0 if params.top_p is None else params.top_p,
        repetition_penalty=1.0 if params.repetition_penalty is None else params.repetition_penalty,
        frequency_penalty=params.frequency_penalty or 0.0,
        seed=params.seed,
        max_tokens=DEFAULT_MAX_TOKENS if params.max_new_tokens is None else params.max_new_tokens,
        stop=tuple(stop for stop in params.stop or () if stop),
        include_stop=True,
        logprobs=params.top_n_tokens or 0,
    )


def _constraint(grammar: TgiGrammar | None) -> Asked | None:
    if grammar is None:
        return None
    found, param = Found(), "parameters.grammar"
    value = grammar.value
    if grammar.type == "json_schema" and isinstance(value, dict) and "schema" in value:
        value = value["schema"]
    if grammar.type in ("json", "json_schema") and isinstance(value, dict | str):
        found.schema(param, value)
    elif grammar.type == "regex" and isinstance(value, str):
        found.regex(param, value)
    else:
        raise bad_request(f"{param} needs a type of json, json_schema or regex, and a value", param)
    return found.one()


class _Writer:
    """Events of one stream: one per token, the last one with the whole text."""

    def __init__(self, call: Single, params: TgiParameters, before: str) -> None:
        self._call = call
        self._params = params
        self._text = before
        self._index = 0

    def events(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        call, finish = self._call, chunk.finish
        self._text += chunk.text
        count = call.shown(chunk)
        last: dict[str, Any] | None = None
        for token, entry in zip(chunk.ids[:count], (chunk.logprobs or [])[:count], strict=True):
            if last is not None:
                yield last
            self._index += 1
            shown = {**_token(call, token, entry), "text": call.token_text(token)}
            last = {"index": self._index, "token": shown, "generated_text": None, "details": None}
            if self._params.top_n_tokens:
                last["top_tokens"] = _top(call, entry)
        if finish is not None:
            if last is None:  # an end token, which has no text of its own
                ended = {"id": call.server.tokenizer.end_ids[0], "text": "", "logprob": 0.0, "special": True}
                last = {"index": self._index + 1, "token": ended}
            details = _details(call, finish.reason, finish.usage.completion)
            details["input_length"] = call.generation.n_prompt
            last |= {"generated_text": self._text, "details": details}
        if last is not None:
            yield last


def _details(call: Single, reason: str, count: int) -> dict[str, Any]:
    return {"finish_reason": _REASONS[reason], "generated_tokens": count, "seed": call.generation.request.seed}


def _token(call: Single, token: int, entry: TokenLogprob) -> dict[str, Any]:
    special = token in call.server.tokenizer.special_ids
    text = call.server.token_names.text(token)
    return {"id": token, "text": text, "logprob": finite(entry.raw), "special": special}


def _top(call: Single, entry: TokenLogprob) -> list[dict[str, Any]]:
    return [_token(call, token, TokenLogprob(value, value)) for token, value in entry.top]
