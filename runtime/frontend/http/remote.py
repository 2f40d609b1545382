"""Endpoints for programs of the DSL that run in another process: ids in, chunks out, nothing lost on the way.

Requests and chunks are those of the client core (``requests.py``) as JSON; a generation is answered by one JSON object
a line: chunks, and at the end ``{"done": ...}`` or ``{"error": ...}``. ``GET /v1/tokenizer`` hands out the model's own
tokeniser and metadata once, so that encoding needs no round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TypeVar

import msgspec
from fastapi import FastAPI
from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import Chunk, GenerateRequest, ScoreRequest, ScoreResult
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.messages import Namespace, TokenLogprob
from ramet.runtime.store import ModelMeta
from starlette.requests import Request
from starlette.responses import Response

from .errors import bad_request, translate
from .fields import check_depth
from .server import Server, gone_away, read_body, watcher, watching
from .sse import EventStream

T = TypeVar("T")


class TokenizerReply(msgspec.Struct, frozen=True):
    """``definition``: the text of tokenizer.json."""

    meta: ModelMeta
    definition: str
    fingerprint: str
    context: int


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a generation's answer: news (``cached``: tokens of the prompt), or its end. ``prompt_from``,
    ``prompt``: log-probabilities of the prompt's ids from that index on."""

    chunk: Chunk | None = None
    cached: int = 0
    done: bool = False
    prompt_from: int = 0
    prompt: list[TokenLogprob] = []
    error: dict[str, str | None] | None = None


class Lines(EventStream):
    media_type = "application/x-ndjson"


def add_remote_routes(app: FastAPI, server: Server) -> None:
    generate_decoder = msgspec.json.Decoder(GenerateRequest)
    score_decoder = msgspec.json.Decoder(ScoreRequest)
    json = msgspec.json.Encoder()

    def reply(data: object) -> Response:
        return Response(json.encode(data), media_type="application/json")

    @app.get("/v1/tokenizer", include_in_schema=False)
    async def tokenizer() -> Response:
        tokenizer = server.tokenizer
        return reply(
            TokenizerReply(server.meta, tokenizer.definition, tokenizer.fingerprint, server.client.context or 0)
        )

    @app.post("/v1/remote/generate", include_in_schema=False)
    async def generate(request: Request) -> Response:
        asked = _decoded(generate_decoder, await read_body(request))
        wanted = _own(asked, request.state.tenant)
        generation = server.generate(wanted, prompt_param="ids")
        watch = watcher(request, generation.cancel)
        try:
            await generation.accepted()
        except RametError as error:
            watch.cancel()
            raise translate(error, prompt_param="ids") from error

        async def lines() -> AsyncIterator[bytes]:
            try:
                async for data in _lines(generation, json, with_prompt=wanted.logits_from >= 0):
                    yield data
            finally:
                watch.cancel()
                generation.cancel()

        return Lines(lines())

    @app.post("/v1/remote/score", include_in_schema=False)
    async def score(request: Request) -> Response:
        asked = _decoded(score_decoder, await read_body(request))
        if asked.parent is not None:
            raise bad_request("branches are not kept over HTTP: send all ids", "parent")
        asked = replace(asked, namespace=Namespace(tenant=request.state.tenant, salt=asked.namespace.salt))
        server.check_priority(asked.priority)
        scoring = asyncio.ensure_future(server.client.score(asked))

        def gone() -> None:
            scoring.cancel()

        async with watching(request, gone):
            try:
                result: ScoreResult = await scoring
            except asyncio.CancelledError:
                if not scoring.cancelled():
                    scoring.cancel()
                    raise
                raise gone_away() from None  # nobody reads that answer
        return reply(result)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    check_depth(body)
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise bad_request(str(error), None, "invalid_type") from None


def _own(asked: GenerateRequest, tenant: str) -> GenerateRequest:
    if asked.parent is not None or asked.keep:
        raise bad_request("branches are not kept over HTTP: send all ids", "parent")
    return replace(asked, namespace=Namespace(tenant=tenant, salt=asked.namespace.salt))


async def _lines(generation: Generation, json: msgspec.json.Encoder, *, with_prompt: bool) -> AsyncIterator[bytes]:
    try:
        while chunks := await generation.batch():
            yield b"".join(json.encode(Line(chunk, generation.cached_tokens)) + b"\n" for chunk in chunks)
        if with_prompt:
            first = (await generation.result())[0]
            yield (
                json.encode(Line(done=True, prompt_from=first.prompt_logprobs_from, prompt=first.prompt_logprobs))
                + b"\n"
            )
        else:
            yield json.encode(Line(done=True)) + b"\n"
    except RametError as error:
        body = translate(error, prompt_param="ids").body()["error"]
        yield json.encode(Line(error=body)) + b"\n"
