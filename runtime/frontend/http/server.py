"""What the endpoints share."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ramet.runtime.frontend.chat import ChatTemplate
from ramet.runtime.frontend.client import Client
from ramet.runtime.frontend.encoding import check_size, longest_token
from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import Finish, GenerateRequest
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.messages import Usage
from ramet.runtime.store import ModelMeta
from ramet.runtime.tokenizer import Tokenizer
from starlette.requests import ClientDisconnect, Request

from .errors import HttpError, translate
from .logprobs import TokenNames, TokenNumbers
from .metrics import Metrics

MAX_PRIORITY = 10
MAX_BODY = 64 * 1024 * 1024
_BODY = "ramet.body"
"""In a request's scope: the body, once it has been read."""

log = logging.getLogger("ramet.http")


@dataclass
class Server:
    """``names``: every name that the model is served under, its own first."""

    client: Client
    tokenizer: Tokenizer
    meta: ModelMeta
    names: tuple[str, ...]
    metrics: Metrics
    defaults: Mapping[str, float | int] = field(default_factory=dict)
    """Sampling fields where a request gives none."""
    reasoning: bool = False
    """Thoughts are told apart from answers where a request does not say."""
    max_priority: int = MAX_PRIORITY
    """Requests may say a priority of so much, up or down."""
    named: set[tuple[str, Generation]] = field(default_factory=set)
    """Running requests that may be aborted by the id that their callers gave them."""
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def token_names(self) -> TokenNames:
        return TokenNames(self.tokenizer)

    @cached_property
    def token_numbers(self) -> TokenNames:
        return TokenNumbers(self.tokenizer)

    @cached_property
    def template(self) -> ChatTemplate:
        """Raises InvalidRequest for a model without one."""
        return ChatTemplate(self.meta, self.tokenizer)

    def check_priority(self, priority: int) -> None:
        """Raises HttpError: a higher priority goes first whatever waits, so nobody takes any that he likes."""
        if not -self.max_priority <= priority <= self.max_priority:
            raise HttpError(
                400,
                f"priority is {priority}; this server takes {-self.max_priority} to {self.max_priority} "
                "(ramet serve --max-priority)",
                param="priority",
                code="invalid_value",
            )

    @cached_property
    def _longest_token(self) -> int:
        return longest_token(self.tokenizer)

    def check_size(self, text: str, param: str = "prompt") -> None:
        """Raises HttpError for a text that is too long for the context, before it is encoded."""
        try:
            check_size(text, self.client.context, self._longest_token)
        except RametError as error:
            raise translate(error, prompt_param=param) from error

    @property
    def fingerprint(self) -> str:
        return "fp_" + hashlib.sha256(self.client.fingerprint.encode()).hexdigest()[:12]

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.names:
            raise HttpError(
                404,
                f"the model {name!r} is not served here; these names are: {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )

    def generate(
        self, request: GenerateRequest, *, prompt_param: str = "prompt", constraint_param: str | None = None
    ) -> Generation:
        self.check_priority(request.priority)
        try:
            return self.client.generate(request)
        except RametError as error:
            raise translate(error, prompt_param=prompt_param, constraint_param=constraint_param) from error


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


async def read_body(request: Request) -> bytes:
    """Raises HttpError if the client goes away meanwhile (nobody reads that answer), and for a body that is too large,
    as soon as that is seen."""
    known: bytes | None = request.scope.get(_BODY)
    if known is not None:
        return known
    told = request.headers.get("content-length", "")
    body = bytearray()
    try:
        if told.isascii() and told.isdigit() and (len(told) > 15 or int(told) > MAX_BODY):
            raise _too_large(f"{told[:20]} bytes")
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY:
                raise _too_large(f"more than {MAX_BODY} bytes")
    except ClientDisconnect:
        raise gone_away() from None
    request.scope[_BODY] = bytes(body)
    return request.scope[_BODY]  # type: ignore[no-any-return]


def gone_away() -> HttpError:
    return HttpError(400, "the client closed the connection", code="client_disconnected")


def _too_large(told: str) -> HttpError:
    return HttpError(413, f"the body has {told}; at most {MAX_BODY} are taken", code="request_too_large")


@contextlib.asynccontextmanager
async def watching(request: Request, gone: Callable[[], None]) -> AsyncIterator[None]:
    """Calls ``gone`` when the client closes the connection inside the block. The body must have been read before."""
    watch = watcher(request, gone)
    try:
        yield
    finally:
        watch.cancel()


def watcher(request: Request, gone: Callable[[], None]) -> asyncio.Task[None]:
    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone()

    return asyncio.create_task(watch())


def failure(finish: Finish) -> HttpError | None:
    """The error that a choice's end stands for, if it is none of stop, end and length."""
    if finish.reason == "error":
        message = finish.message or "the generation failed"
        return HttpError(500, message, kind="server_error", code="generation_failed")
    if finish.reason == "cancelled":
        message = finish.message or "the request was cancelled"
        return HttpError(503, message, kind="overloaded_error", code="cancelled")
    return None


FINISH_REASONS = {"stop": "stop", "end": "stop", "length": "length"}


def usage_json(usages: Sequence[Usage], thought: int = 0) -> dict[str, Any]:
    """Summed over choices; the prompt is counted in one of them. ``thought``: tokens of reasoning among them."""
    prompt = sum(usage.prompt for usage in usages)
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached for usage in usages)},
        "completion_tokens_details": {
            "reasoning_tokens": thought,
            "forced_tokens": sum(usage.forced for usage in usages),
        },
    }
