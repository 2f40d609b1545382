"""A conversation on its way to an answer: what the endpoints that take conversations share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.runtime.frontend.encoding import beside_loop
from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import GenerateRequest
from ramet.runtime.protocol.errors import ConstraintError, RametError
from ramet.runtime.protocol.messages import ConstraintSpec

from .constraints import Asked, asked_constraint
from .errors import HttpError, bad_request, translate
from .fields import ChatBody, TokenizeBody
from .logprobs import TokenNames
from .lower import lower, truncated
from .objects import ObjectStream, object_stream
from .reasoning import Reasoning, opened, thought_tokens
from .server import FINISH_REASONS, Server, new_id
from .tool_text import Call, ToolPlan, call_id, calls_of_array, calls_of_text, plan_tools
from .unknown import unsupported

_TAKEN = {"self", "check", "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
"""Names of a chat template that a request says elsewhere, or not at all."""


@dataclass(frozen=True)
class ChatCall:
    """One accepted request on its way to an answer."""

    server: Server
    generation: Generation
    tools: ToolPlan
    top_logprobs: int
    """Alternatives wanted of each token; -1: no log-probabilities."""
    prompt_logprobs: int
    """The same of the prompt's tokens."""
    token_ids: bool
    names: TokenNames
    id: str
    created: int
    model: str
    constraint_param: str | None
    objects: ObjectStream | None
    reasoning: Reasoning | None
    """How thoughts are told apart; None: they are not."""

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.server.fingerprint,
        }

    def error(self, error: RametError) -> HttpError:
        return translate(error, prompt_param="messages", constraint_param=self.constraint_param)


async def start_chat(server: Server, body: ChatBody, tenant: str) -> ChatCall:
    """Raises HttpError for whatever can be seen before the scheduler is asked."""
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    if body.echo:
        raise unsupported("echo")
    tools, asked = plan_tools(body), asked_constraint(body)
    spec, constraint_param = await _constraint(server, tools, asked)
    objects = object_stream(body, spec, tools=tools.mode != "none")
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    whole = body.truncate_prompt_tokens is None
    ids = truncated(
        await chat_ids(server, body, tools.tools, whole=whole), body.truncate_prompt_tokens, server.client.context
    )
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    lowered = lower(
        body, ids, defaults=server.defaults, max_tokens=limit, constraint=spec, logprobs=logprobs, tenant=tenant
    )
    generation = server.generate(lowered, prompt_param="messages", constraint_param=constraint_param)
    return ChatCall(
        server,
        generation,
        tools,
        logprobs,
        -1 if body.prompt_logprobs is None else body.prompt_logprobs,
        bool(body.return_token_ids),
        server.token_numbers if body.return_tokens_as_token_ids else server.token_names,
        new_id("chatcmpl-"),
        int(time.time()),
        body.model,
        constraint_param,
        objects,
        _reasoning(server, body, tools, lowered),
    )


def _reasoning(server: Server, body: ChatBody, tools: ToolPlan, request: GenerateRequest) -> Reasoning | None:
    wanted = server.reasoning if body.separate_reasoning is None else body.separate_reasoning
    if not wanted or tools.mode in ("required", "named"):
        return None
    # A constraint describes what is written, from its first letter on.
    inside = request.constraint is None and opened(server.tokenizer.token_table, request.ids)
    return Reasoning(inside, body.include_reasoning is not False)


async def _constraint(server: Server, tools: ToolPlan, asked: Asked | None) -> tuple[ConstraintSpec | None, str | None]:
    """(constraint, the field that it came from). Where the model may answer in text, an asked-for format goes before
    the form of calls, and calls of tools that are not strict stay free if their schemas cannot be enforced."""
    if asked is not None:
        if tools.mode in ("required", "named"):
            raise bad_request(f"{asked.param} and tool_choice both constrain the answer", asked.param)
        return asked.spec, asked.param
    if tools.spec is not None and tools.mode == "auto" and not tools.must:
        try:
            await server.client.compile(tools.spec)
        except ConstraintError:
            return None, None
    return tools.spec, "tools"


def messages_of(body: ChatBody | TokenizeBody) -> list[dict[str, Any]]:
    """As the template takes them."""
    return [
        {**(message.model_extra or {}), "role": message.role, "content": message.content}
        for message in body.messages or ()
    ]


async def chat_ids(
    server: Server, body: ChatBody | TokenizeBody, tools: Sequence[dict[str, Any]] = (), *, whole: bool
) -> list[int]:
    """Ids of the conversation. ``continue_final_message``: the last message stays open and is written on. ``whole``:
    all of it has to fit into the context."""
    messages = messages_of(body)
    try:
        return await beside_loop(_characters([messages, tools]), lambda: _ids(server, body, messages, tools, whole))
    except RametError as error:
        raise translate(error, prompt_param="messages") from error


def _ids(
    server: Server,
    body: ChatBody | TokenizeBody,
    messages: list[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    whole: bool,
) -> list[int]:
    continues = bool(body.continue_final_message)
    prompted = body.add_generation_prompt

    def check(text: str) -> None:
        if whole:
            server.check_size(text, "messages")

    if not continues:
        wanted = True if prompted is None else prompted
        variables = body.chat_template_kwargs or {}
        if taken := sorted(_TAKEN & set(variables)):
            raise bad_request(f"chat_template_kwargs cannot set {', '.join(taken)}", "chat_template_kwargs")
        if body.documents is not None:
            variables = {**variables, "documents": body.documents}
        return server.template.ids(messages, wanted, list(tools) or None, check=check, **variables)
    if prompted:
        raise bad_request("continue_final_message and add_generation_prompt exclude each other", "messages")
    if not messages or messages[-1]["role"] != "assistant" or not isinstance(messages[-1]["content"], str):
        raise bad_request("continue_final_message needs a last message of the assistant with text", "messages")
    check(messages[-1]["content"])
    before = server.template.ids(messages[:-1], True, list(tools) or None, check=check)
    return before + server.tokenizer.encode(messages[-1]["content"], follows="text")


def _characters(value: object) -> int:
    """Of all texts inside, however deep."""
    count, open_values = 0, [value]
    while open_values:
        value = open_values.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, Mapping):
            open_values.extend(value.values())
        elif isinstance(value, Sequence):
            open_values.extend(value)
    return count


def read_answer(tools: ToolPlan, text: str) -> tuple[str | None, list[Call]]:
    """(content, calls): content is null where the answer is calls alone."""
    if tools.mode == "required":
        return None, calls_of_array(text)
    if tools.mode == "named":
        return None, [Call(call_id(), tools.name, text)]
    if tools.mode == "auto":
        content, calls = calls_of_text(text, frozenset(tool["function"]["name"] for tool in tools.tools))
        return (content or None) if calls else content, calls
    return text, []


def finish_reason(tools: ToolPlan, reason: str, called: bool) -> str:
    """As OpenAI: ``tool_calls`` where the model chose to call; a call by name ends with ``stop``."""
    shown = FINISH_REASONS[reason]
    return "tool_calls" if called and shown == "stop" and tools.mode != "named" else shown


def thoughts_of(call: ChatCall, ids: Sequence[Sequence[int]]) -> int:
    """How many of the choices' ids are thoughts."""
    if call.reasoning is None:
        return 0
    table = call.server.tokenizer.token_table
    return sum(thought_tokens(table, one, call.reasoning.inside) for one in ids)
