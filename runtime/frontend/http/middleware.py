"""Around every request, as plain ASGI (no per-chunk cost): its id, the API key, the counters."""

from __future__ import annotations

import re
import secrets
import time
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import HttpError
from .metrics import Metrics

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
OPEN_PATHS = ("/", "/health", "/ready", "/ping", "/dashboard")
"""Read by machines that hold no key; the dashboard is a page without data, which asks for the key. Nothing is made or
changed there: POST / is a generation."""


class Frame:
    """``api_keys``: none of them set, everyone may ask. Several keys: each is a tenant of its own in the cache."""

    def __init__(self, app: ASGIApp, *, api_keys: tuple[str, ...], metrics: Metrics) -> None:
        self._app = app
        self._keys = [key.encode() for key in api_keys]
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16).encode()
        began, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        scope.setdefault("state", {})
        self._metrics.open.inc()
        try:
            refused = self._authorise(scope, headers)
            if refused is not None:
                await refused.response()(scope, receive, sending)
            else:
                await self._app(scope, receive, sending)
        finally:
            self._metrics.open.dec()
            route: Any = scope.get("route")
            path = getattr(route, "path", "other")
            self._metrics.http.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - began)

    def _authorise(self, scope: Scope, headers: dict[bytes, bytes]) -> HttpError | None:
        scope["state"]["tenant"] = ""
        if not self._keys or (scope["path"] in OPEN_PATHS and scope["method"] in ("GET", "HEAD")):
            return None
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip()
        given = given or headers.get(b"x-api-key", b"")
        for key in self._keys:
            if compare_digest(given, key):
                if len(self._keys) > 1:
                    scope["state"]["tenant"] = sha256(key).hexdigest()[:16]
                return None
        message = "a valid API key is needed: Authorization: Bearer KEY"
        return HttpError(401, message, kind="authentication_error", code="invalid_api_key")
