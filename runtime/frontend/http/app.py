"""The HTTP face of a client: an ASGI app with OpenAI's endpoints and a few of our own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from ramet.runtime.frontend.client import Client
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.store import ModelFolder
from ramet.runtime.tokenizer import Tokenizer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from .chat import chat_completions
from .completions import completions
from .elsewhere import add_elsewhere
from .errors import HttpError, on_crash, on_http_error, on_ramet_error, on_status
from .fields import ChatBody, CompletionBody
from .metrics import Metrics
from .middleware import Frame
from .own import add_own_routes
from .remote import add_remote_routes
from .responses import responses
from .responses_input import ResponsesBody
from .routes import body_of, json_response, tenant_of
from .server import MAX_PRIORITY, Server


def create_app(
    client: Client,
    model: ModelFolder,
    *,
    tokenizer: Tokenizer | None = None,
    names: tuple[str, ...] | None = None,
    api_keys: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    own_sampling: bool = True,
    reasoning: bool = False,
    max_priority: int = MAX_PRIORITY,
    version: str = "",
    start_timeout_s: float = 120.0,
) -> FastAPI:
    """``client`` is started and closed with the app, in its loop. ``names``: what the model is served as; None: its own
    name, its aliases and ``default``. ``api_keys``: empty: no key is needed.
    ``own_sampling``: a request that does not say how to draw is drawn as the model's makers want it.
    ``reasoning``: thoughts between <think> tags are told apart from answers.
    ``max_priority``: what requests may say as theirs, up or down (0: none).
    ``origins``: pages of other hosts that browsers may let ask here (CORS); ``*``: all."""
    metrics = Metrics()
    client.observe(metrics.ended)
    server = Server(
        client,
        tokenizer or Tokenizer.load(model),
        model.meta,
        names or tuple(dict.fromkeys((model.meta.name, "default", *model.meta.aliases))),
        metrics,
        model.meta.sampling.given() if own_sampling else {},
        reasoning,
        max_priority,
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await client.start(start_timeout_s)
        try:
            yield
        finally:
            await client.close()

    app = FastAPI(title="ramet", version=version or "0", lifespan=lifespan, redoc_url=None)
    app.state.server = server
    app.add_middleware(Frame, api_keys=api_keys, metrics=metrics)
    if origins:  # outermost: a browser asks for permission without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-ramet-ignored", "retry-after"],
            max_age=3600,
        )
    app.add_exception_handler(HttpError, on_http_error)
    app.add_exception_handler(RametError, on_ramet_error)
    app.add_exception_handler(HTTPException, on_status)
    app.add_exception_handler(Exception, on_crash)
    _openai_routes(app, server)
    add_own_routes(app, server)
    add_remote_routes(app, server)
    add_elsewhere(app, server)
    return app


def _openai_routes(app: FastAPI, server: Server) -> None:
    @app.post("/v1/chat/completions", openapi_extra=body_of(ChatBody))
    async def chat(request: Request) -> Response:
        """A conversation's next message."""
        return await chat_completions(server, request, tenant_of(request))

    @app.post("/v1/completions", openapi_extra=body_of(CompletionBody))
    async def complete(request: Request) -> Response:
        """The text that follows a prompt."""
        return await completions(server, request, tenant_of(request))

    @app.post("/v1/responses", openapi_extra=body_of(ResponsesBody))
    async def respond(request: Request) -> Response:
        """OpenAI's newer API, without a memory: the whole conversation comes with each request."""
        return await responses(server, request, tenant_of(request))

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
        return json_response({"object": "list", "data": [entry(name) for name in server.names]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        server.check_model(name)
        return json_response(entry(name))
