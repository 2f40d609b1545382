"""Errors that a server names in its answers, as exceptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ramet.http_client import Head
from ramet.runtime.protocol.errors import (
    ConstraintError,
    GenerationFailed,
    InvalidConstraint,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RametError,
    RequestTimeout,
)


def error_of(head: Head, body: bytes) -> RametError:
    """The exception that an answer other than 200 stands for."""
    try:
        return error_from(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return GenerationFailed(f"the server answered {head.status}: {body[:200]!r}")


def error_from(data: Mapping[str, Any]) -> RametError:
    """``data``: the inner object of an error as OpenAI's API writes it."""
    message, code, kind = str(data.get("message")), str(data.get("code")), data.get("type")
    error: RametError
    if code in ("queue_full", "draining", "overloaded") or kind in ("rate_limit_error", "overloaded_error"):
        error = Overloaded(message)
    elif code == "model_not_found":
        error = ModelNotFound(message)
    elif kind == "timeout_error":
        error = RequestTimeout(message)
    elif "constraint" in code:
        error = InvalidConstraint(message) if code == InvalidConstraint.code else ConstraintError(message)
    elif kind == "invalid_request_error":
        return InvalidRequest(message, param=data.get("param"), code=code)
    else:
        error = GenerationFailed(message)
    error.code = code
    return error
