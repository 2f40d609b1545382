"""Errors in OpenAI's shape, ``{"error": {message, type, param, code}}``, for whatever goes wrong.

400 is never used for what may pass on a second try, nor 5xx for what cannot: the official client sends 429 and 5xx
again by itself.
"""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import ValidationError
from ramet.runtime.protocol.errors import (
    ConstraintError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RametError,
    RequestTimeout,
    Unavailable,
)
from starlette.requests import Request
from starlette.responses import Response

RETRY_AFTER_S = 1

# What the client calls by its own name, and the API by another.
_PARAMS = {"ids": "prompt", "max_new_tokens": "max_tokens"}


class HttpError(Exception):
    """An answer other than 200, ready to be sent."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {"retry-after": str(RETRY_AFTER_S)} if self.status in (429, 503) else None
        return Response(orjson.dumps(self.body()), self.status, headers, "application/json")


def bad_request(message: str, param: str | None, code: str = "invalid_value") -> HttpError:
    return HttpError(400, message, param=param, code=code)


def translate(error: RametError, *, prompt_param: str = "prompt", constraint_param: str | None = None) -> HttpError:
    """``prompt_param``: what this endpoint calls the prompt; ``constraint_param``: the field that a constraint came
    from."""
    message = str(error)
    match error:
        case InvalidRequest():
            param = _PARAMS.get(error.param or "", error.param)
            return bad_request(message, prompt_param if param == "prompt" else param, error.code)
        case ConstraintError():
            return bad_request(message, constraint_param, error.code)
        case ModelNotFound():
            return HttpError(404, message, param="model", code=error.code)
        case Unavailable():
            return HttpError(503, message, kind="server_error", code=error.code)
        case Overloaded() if error.code == "draining":
            return HttpError(503, message, kind="overloaded_error", code=error.code)
        case Overloaded():
            return HttpError(429, message, kind="rate_limit_error", code=error.code)
        case RequestTimeout():
            return HttpError(504, message, kind="timeout_error", code=error.code)
        case _:
            return HttpError(500, message, kind="server_error", code=error.code)


def from_validation(error: ValidationError) -> HttpError:
    """The first thing that is wrong, with the path of its field."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "tagged-union"))]
    # Names of union members, which stand in the path of an error, mean nothing to the caller.
    shown = [part for part in path if part.isdigit() or part.isidentifier()]
    param = ".".join(shown) or None
    if first["type"] == "missing":
        return bad_request(f"{param} is missing", param, "missing_required_parameter")
    given = repr(first["input"])
    given = given if len(given) <= 80 else given[:77] + "..."
    return bad_request(f"{param}: {first['msg']}; given: {given}", param, "invalid_type")


async def on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error.response()


async def on_ramet_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RametError)
    return translate(error).response()


async def on_status(request: Request, error: Exception) -> Response:
    """No such path, wrong method."""
    status = int(getattr(error, "status_code", 500))
    detail = str(getattr(error, "detail", error))
    code = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}.get(status, "http_error")
    if status == 404:
        detail += "; /docs lists all paths"
    return HttpError(status, f"{request.method} {request.url.path}: {detail}", code=code).response()


async def on_crash(_: Request, error: Exception) -> Response:
    message = f"the server failed on this request: {type(error).__name__}"
    return HttpError(500, message, kind="server_error", code="internal_error").response()
