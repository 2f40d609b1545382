"""Endpoints of our own: health, counters, the tokeniser, the cache, the dashboard, and what SGLang's users look for."""

from __future__ import annotations

import contextlib
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI
from ramet.runtime.frontend.encoding import beside_loop
from ramet.runtime.protocol.errors import GenerationFailed, RequestTimeout
from starlette.requests import Request
from starlette.responses import Response

from .chat_call import chat_ids
from .errors import bad_request
from .fields import DetokenizeBody, TokenizeBody, parse
from .metrics import CONTENT_TYPE
from .native import AbortBody, GenerateBody, generate
from .routes import body_of, json_response, tenant_of
from .server import Server, read_body
from .tgi import has_inputs, tgi_generate


def add_own_routes(app: FastAPI, server: Server) -> None:
    _state(app, server)
    _tokens(app, server)
    _native(app, server)


def _state(app: FastAPI, server: Server) -> None:
    client = server.client

    @app.get("/health")
    async def health() -> Response:
        """This process is alive."""
        return json_response({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        """Requests would be taken: scheduler and worker are there."""
        stats: dict[str, Any] = {}
        if client.gone:
            return json_response({"status": "not ready", "reason": client.gone}, 503)
        if client.connected:
            with contextlib.suppress(RequestTimeout, GenerationFailed):
                stats = await client.control("stats", timeout_s=2.0)
        good = bool(stats) and bool(stats.get("ready", True)) and not stats.get("draining", False)
        return json_response({"status": "ready" if good else "not ready"}, 200 if good else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Prometheus text; JSON where ``Accept`` asks for it."""
        stats = await client.control("stats", timeout_s=5.0)
        if "application/json" in request.headers.get("accept", ""):
            return json_response({**stats, "model": server.meta.name, "open_requests": client.open_requests})
        return Response(server.metrics.text(stats), media_type=CONTENT_TYPE)

    @app.get("/tree")
    async def tree(request: Request, cache_salt: str = "") -> Response:
        """The caller's part of the prefix tree: nodes, parents first, with the beginning of each one's text. What was
        asked with a ``cache_salt`` is seen by those that know it."""
        found = await client.control("tree", timeout_s=10.0)
        whose = (tenant_of(request), cache_salt)
        own = [
            part for part in found["namespaces"] if (part["namespace"]["tenant"], part["namespace"]["salt"]) == whose
        ]
        for part in own:
            for node in part["nodes"]:
                node["text"] = server.tokenizer.text(node.pop("ids"))
        return json_response({"namespaces": own})

    @app.get("/flush_cache", include_in_schema=False)
    @app.post("/flush_cache")
    @app.post("/reset_prefix_cache", include_in_schema=False)
    async def flush() -> Response:
        """Forget every cached prefix that no running request uses."""
        return json_response({"status": "ok", **await client.control("flush", timeout_s=30.0)})

    page = resources.files("ramet.runtime.frontend.http").joinpath("dashboard.html").read_bytes()

    @app.get("/dashboard", include_in_schema=False)
    async def dashboard() -> Response:
        return Response(page, media_type="text/html")


def _tokens(app: FastAPI, server: Server) -> None:
    @app.post("/tokenize", openapi_extra=body_of(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """Ids of a text, or of a conversation."""
        body = parse(TokenizeBody, await read_body(request))
        server.check_model(body.model)
        text = next((one for one in (body.prompt, body.text, body.content) if one is not None), None)
        if body.messages is not None:
            tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]
            ids = await chat_ids(server, body, tools, whole=False)
        elif text is not None:
            encode = partial(server.tokenizer.encode, text, special=bool(body.special))
            ids = await beside_loop(len(text), encode)
            bos = server.tokenizer.bos_id
            # llama.cpp's name for it is off by default, vLLM's on.
            wanted = bool(body.add_special) if body.content is not None else body.add_special_tokens is not False
            if wanted and server.meta.add_bos and bos is not None:
                ids = [bos, *ids]
        else:
            raise bad_request("prompt or messages is missing", "prompt", "missing_required_parameter")
        return await beside_loop(len(ids), lambda: _tokenized(server, body, ids))

    @app.post("/detokenize", openapi_extra=body_of(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """Text of ids."""
        body = parse(DetokenizeBody, await read_body(request))
        server.check_model(body.model)
        for token in body.tokens:
            if not 0 <= token < server.tokenizer.vocab_size:
                raise bad_request(
                    f"token id {token} is outside the vocabulary (0 to {server.tokenizer.vocab_size - 1})", "tokens"
                )
        text = server.tokenizer.text(body.tokens)
        return json_response({"prompt": text, "text": text, "content": text})


def _tokenized(server: Server, body: TokenizeBody, ids: list[int]) -> Response:
    names = server.token_names
    answer: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": server.client.context}
    if body.return_token_strs:
        answer["token_strs"] = [names.text(token) for token in ids]
    if body.with_pieces:
        answer["tokens"] = [{"id": token, "piece": _piece(names.bytes(token), names.text(token))} for token in ids]
    return json_response(answer)


def _piece(data: bytes, name: str) -> str | list[int]:
    """As text, or as bytes where they are no text by themselves."""
    try:
        return data.decode() or name
    except UnicodeDecodeError:
        return list(data)


def _native(app: FastAPI, server: Server) -> None:
    @app.post("/generate", openapi_extra=body_of(GenerateBody))
    async def native(request: Request) -> Response:
        """The text that follows ``text`` (in SGLang's shape; streamed text is cumulative) or ``inputs`` (in TGI's)."""
        raw = await read_body(request)
        if has_inputs(raw):
            return await tgi_generate(server, request, raw, tenant_of(request), stream=False)
        return await generate(server, request, tenant_of(request))

    @app.post("/abort_request", openapi_extra=body_of(AbortBody))
    async def abort(request: Request) -> Response:
        """Ends the caller's requests of ``/generate`` by their ``rid``, or all of them."""
        body = parse(AbortBody, await read_body(request))
        for rid, generation in list(server.named):
            theirs = generation.request.namespace.tenant == tenant_of(request)
            if theirs and (body.abort_all or rid == body.rid):
                generation.cancel()
        return json_response({"status": "ok"})

    @app.get("/get_model_info", include_in_schema=False)
    @app.get("/model_info")
    async def model_info() -> Response:
        return json_response(
            {
                "model_path": server.meta.name,
                "tokenizer_path": server.meta.name,
                "is_generation": True,
                "max_model_len": server.client.context,
                "vocab_size": server.tokenizer.vocab_size,
            }
        )

    @app.get("/get_server_info", include_in_schema=False)
    @app.get("/server_info")
    async def server_info() -> Response:
        """The model, its numerics, and the counters of ``/metrics``."""
        stats = await server.client.control("stats", timeout_s=5.0)
        info = {
            "model_path": server.meta.name,
            "served_model_names": server.names,
            "fingerprint": server.client.fingerprint,
            "max_total_num_tokens": stats["blocks"]["total"] * stats["block_size"],
            "stats": stats,
        }
        return json_response(info)
