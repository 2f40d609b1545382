"""The HTTP face of a client: an ASGI app with OpenAI's endpoints and a few of our own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import FastAPI
from ramet.runtime.frontend.client import Client
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.store import ModelFolder
from ramet.runtime.tokenizer import Tokenizer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .chat import chat_completions, chat_ids
from .completions import completions
from .errors import HttpError, bad_request, on_crash, on_http_error, on_ramet_error, on_status
from .fields import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, parse
from .metrics import CONTENT_TYPE, Metrics
from .middleware import Frame
from .server import Server, read_body


def create_app(
    client: Client,
    model: ModelFolder,
    *,
    tokenizer: Tokenizer | None = None,
    names: tuple[str, ...] | None = None,
    api_keys: tuple[str, ...] = (),
    start_timeout_s: float = 120.0,
) -> FastAPI:
    """``client`` is started and closed with the app, in its loop. ``names``: what the model is served as; None: its own
    name, its aliases and ``default``. ``api_keys``: empty: no key is needed."""
    metrics = Metrics()
    server = Server(
        client,
        tokenizer or Tokenizer.load(model),
        model.meta,
        names or tuple(dict.fromkeys((model.meta.name, "default", *model.meta.aliases))),
        metrics,
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await client.start(start_timeout_s)
        try:
            yield
        finally:
            await client.close()

    app = FastAPI(title="ramet", lifespan=lifespan, redoc_url=None)
    app.state.server = server
    app.add_middleware(Frame, api_keys=api_keys, metrics=metrics)
    app.add_exception_handler(HttpError, on_http_error)
    app.add_exception_handler(RametError, on_ramet_error)
    app.add_exception_handler(HTTPException, on_status)
    app.add_exception_handler(Exception, on_crash)
    _openai_routes(app, server)
    _own_routes(app, server)
    return app


def _tenant(request: Request) -> str:
    tenant: str = request.state.tenant
    return tenant


def _body_of(kind: type[Any]) -> dict[str, Any]:
    """The endpoints read bodies themselves (errors in our shape); the documentation shows their type all the same."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    inlined = _inline(schema, definitions)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inline(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
        return {key: _inline(value, definitions) for key, value in schema.items()}
    return [_inline(item, definitions) for item in schema] if isinstance(schema, list) else schema


def _json(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")


def _openai_routes(app: FastAPI, server: Server) -> None:
    @app.post("/v1/chat/completions", openapi_extra=_body_of(ChatBody))
    async def chat(request: Request) -> Response:
        """A conversation's next message."""
        return await chat_completions(server, request, _tenant(request))

    @app.post("/v1/completions", openapi_extra=_body_of(CompletionBody))
    async def complete(request: Request) -> Response:
        """The text that follows a prompt."""
        return await completions(server, request, _tenant(request))

    def entry(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": server.created,
            "owned_by": "ramet",
            "root": server.meta.name,
            "max_model_len": server.client.context,
        }

    @app.get("/v1/models")
    async def models() -> Response:
        """Every name that the model is served under."""
        return _json({"object": "list", "data": [entry(name) for name in server.names]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        server.check_model(name)
        return _json(entry(name))


def _own_routes(app: FastAPI, server: Server) -> None:
    client = server.client

    @app.get("/health")
    async def health() -> Response:
        """This process is alive."""
        return _json({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """Requests would be taken: scheduler and worker are there."""
        stats = await client.control("stats", timeout_s=2.0) if client.connected else {}
        good = bool(stats) and bool(stats.get("worker", True)) and not stats.get("draining", False)
        return _json({"status": "ready" if good else "not ready"}, 200 if good else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus text; JSON where ``Accept`` asks for it."""
        stats = await client.control("stats", timeout_s=5.0)
        if "application/json" in request.headers.get("accept", ""):
            return _json({**stats, "open_requests": client.open_requests})
        return Response(server.metrics.text(stats), media_type=CONTENT_TYPE)

    @app.get("/flush_cache", include_in_schema=False)
    @app.post("/flush_cache")
    async def flush() -> Response:
        """Forget every cached prefix that no running request uses."""
        return _json({"status": "ok", **await client.control("flush", timeout_s=30.0)})

    @app.post("/tokenize", openapi_extra=_body_of(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        body = parse(TokenizeBody, await read_body(request))
        server.check_model(body.model)
        text = body.prompt if body.prompt is not None else body.text
        if body.messages is not None:
            ids = chat_ids(server, body)
        elif text is not None:
            ids = server.tokenizer.encode(text, special=bool(body.special))
        else:
            raise bad_request("prompt or messages is missing", "prompt", "missing_required_parameter")
        return _json({"tokens": ids, "count": len(ids), "max_model_len": client.context})

    @app.post("/detokenize", openapi_extra=_body_of(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        body = parse(DetokenizeBody, await read_body(request))
        server.check_model(body.model)
        for token in body.tokens:
            if not 0 <= token < server.tokenizer.vocab_size:
                raise bad_request(
                    f"token id {token} is outside the vocabulary (0 to {server.tokenizer.vocab_size - 1})", "tokens"
                )
        text = server.tokenizer.text(body.tokens)
        return _json({"prompt": text, "text": text})
