"""Paths that users of other servers look for: second names, and those that are absent for a reason."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .errors import HttpError
from .fields import TokenizeBody, parse
from .llamacpp import LlamaCppBody, llamacpp_completion, llamacpp_props
from .routes import body_of, json_response, tenant_of
from .server import Server, read_body
from .tgi import TgiBody, tgi_generate, tgi_info

_NO_VECTORS = "this server generates text and has no embedding or ranking models"
_NO_MEDIA = "this server knows text alone, no sound and no images"
_NO_STATE = "nothing is stored here: send whole conversations (equal beginnings are cached)"
_NO_ADAPTERS = "adapters cannot be loaded: serve the merged model"
_ABSENT: Mapping[str, str] = {
    "/v1/embeddings": _NO_VECTORS,
    "/embeddings": _NO_VECTORS,
    "/v1/rerank": _NO_VECTORS,
    "/rerank": _NO_VECTORS,
    "/v1/score": "log-probabilities of given text come from /v1/completions with echo, max_tokens 0 and logprobs",
    "/pooling": _NO_VECTORS,
    "/classify": "a choice among answers comes from the field choice of /v1/chat/completions",
    "/v1/audio/transcriptions": _NO_MEDIA,
    "/v1/audio/translations": _NO_MEDIA,
    "/v1/audio/speech": _NO_MEDIA,
    "/v1/images/generations": _NO_MEDIA,
    "/v1/moderations": "there is no moderation model here",
    "/v1/responses/{id}": _NO_STATE,
    "/v1/responses/{id}/cancel": _NO_STATE,
    "/v1/conversations": _NO_STATE,
    "/v1/messages": "this is not Anthropic's API: use /v1/chat/completions",
    "/v1/files": _NO_STATE,
    "/v1/batches": "run many records by `ramet extract` or `ramet run`, or send them all at once",
    "/v1/load_lora_adapter": _NO_ADAPTERS,
    "/v1/unload_lora_adapter": _NO_ADAPTERS,
    "/infill": "filling in the middle needs a model that was trained for it: write its prompt to /v1/completions",
}


def add_elsewhere(app: FastAPI, server: Server) -> None:
    for path, why in _ABSENT.items():
        _absent(app, path, why)

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("/dashboard")

    @app.post("/", include_in_schema=False)
    async def tgi_root(request: Request) -> Response:
        return await tgi_generate(server, request, await read_body(request), tenant_of(request), stream=None)

    @app.post("/generate_stream", openapi_extra=body_of(TgiBody))
    async def tgi_stream(request: Request) -> Response:
        """TGI's stream: an event per token."""
        return await tgi_generate(server, request, await read_body(request), tenant_of(request), stream=True)

    @app.get("/info")
    async def info() -> Response:
        """What TGI's clients ask before they begin."""
        return json_response(tgi_info(server, app.version))

    @app.post("/completions", include_in_schema=False)
    @app.post("/completion", openapi_extra=body_of(LlamaCppBody))
    async def completion(request: Request) -> Response:
        """llama.cpp's own endpoint."""
        return await llamacpp_completion(server, request, tenant_of(request))

    @app.get("/props")
    async def props() -> Response:
        """What llama.cpp's clients ask before they begin."""
        return json_response(llamacpp_props(server))

    @app.post("/apply-template")
    async def apply_template(request: Request) -> Response:
        """The text of a conversation."""
        body = parse(TokenizeBody, await read_body(request))
        messages = [
            {**(one.model_extra or {}), "role": one.role, "content": one.content} for one in body.messages or ()
        ]
        return json_response({"prompt": server.template.render(messages)})

    @app.get("/ping", include_in_schema=False)
    @app.post("/ping", include_in_schema=False)
    async def ping() -> Response:
        return Response(status_code=200)

    @app.get("/version", include_in_schema=False)
    async def version() -> Response:
        return json_response({"version": app.version})

    @app.get("/load", include_in_schema=False)
    async def load() -> Response:
        return json_response({"server_load": server.client.open_requests})


def _absent(app: FastAPI, path: str, why: str) -> None:
    @app.api_route(path, methods=["GET", "POST"], include_in_schema=False)
    async def absent(request: Request) -> Response:
        await read_body(request)
        raise HttpError(404, f"{path} is not served: {why}", code="unsupported_endpoint")
