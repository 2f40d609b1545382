"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from ramet.runtime.frontend.generation import Generation
from ramet.runtime.frontend.requests import ChoiceResult, Chunk, Finish
from ramet.runtime.protocol.errors import ConstraintError, RametError
from ramet.runtime.protocol.messages import ConstraintSpec, TokenLogprob
from starlette.requests import Request
from starlette.responses import Response

from .chat_stream import ToolStream, text_stream
from .constraints import Asked, asked_constraint
from .errors import HttpError, bad_request, translate
from .fields import ChatBody, TokenizeBody, parse
from .logprobs import TokenNames, chat_entries, prompt_entries
from .lower import lower, truncated
from .objects import ObjectStream, object_stream
from .server import FINISH_REASONS, Server, failure, new_id, read_body, usage_json, watcher, watching
from .sse import DONE, ChunkWriter, EventStream, chunk_writer, event
from .tool_text import Call, ToolPlan, call_id, calls_of_array, calls_of_text, plan_tools
from .unknown import unsupported
from .visible import visible

_TAKEN = {"self", "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"}
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


async def chat_completions(server: Server, request: Request, tenant: str) -> Response:
    body = parse(ChatBody, await read_body(request))
    server.check_model(body.model)
    ignored = body.ignored()
    headers = {"x-ramet-ignored": ", ".join(ignored)} if ignored else {}
    call = await _start(server, body, tenant)
    generation = call.generation
    if body.stream:
        watch = watcher(request, generation.cancel)
        try:
            await generation.accepted()
        except RametError as error:
            watch.cancel()
            raise call.error(error) from error
        writer = chunk_writer(call.head("chat.completion.chunk"), body)
        return EventStream(_stream(call, writer, watch.cancel), headers)
    async with watching(request, generation.cancel):
        try:
            results = await generation.result()
        except RametError as error:
            raise call.error(error) from error
    return Response(orjson.dumps(_whole(call, results)), 200, headers, "application/json")


async def _start(server: Server, body: ChatBody, tenant: str) -> ChatCall:
    """Raises HttpError for whatever can be seen before the scheduler is asked."""
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    if body.echo:
        raise unsupported("echo")
    tools, asked = plan_tools(body), asked_constraint(body)
    spec, constraint_param = await _constraint(server, tools, asked)
    objects = object_stream(body, spec, tools=tools.mode != "none")
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    ids = truncated(chat_ids(server, body, tools.tools), body.truncate_prompt_tokens, server.client.context)
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
    )


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


def chat_ids(server: Server, body: ChatBody | TokenizeBody, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
    """Ids of the conversation. ``continue_final_message``: the last message stays open and is written on."""
    messages = [
        {**(message.model_extra or {}), "role": message.role, "content": message.content}
        for message in body.messages or ()
    ]
    continues = bool(body.continue_final_message)
    prompted = body.add_generation_prompt
    try:
        if not continues:
            wanted = True if prompted is None else prompted
            variables = body.chat_template_kwargs or {}
            if taken := sorted(_TAKEN & set(variables)):
                raise bad_request(f"chat_template_kwargs cannot set {', '.join(taken)}", "chat_template_kwargs")
            if body.documents is not None:
                variables = {**variables, "documents": body.documents}
            return server.template.ids(messages, wanted, list(tools) or None, **variables)
        if prompted:
            raise bad_request("continue_final_message and add_generation_prompt exclude each other", "messages")
        if not messages or messages[-1]["role"] != "assistant" or not isinstance(messages[-1]["content"], str):
            raise bad_request("continue_final_message needs a last message of the assistant with text", "messages")
        before = server.template.ids(messages[:-1], True, list(tools) or None)
        return before + server.tokenizer.encode(messages[-1]["content"], follows="text")
    except RametError as error:
        raise translate(error, prompt_param="messages") from error


# ---------------------------------------------------------------- the whole answer


def _whole(call: ChatCall, results: list[ChoiceResult]) -> dict[str, Any]:
    finishes = [Finish(result.finish_reason, result.usage, result.stop, result.message) for result in results]
    for finish in finishes:
        error = failure(finish)
        if error is not None:
            raise error
    answer = {
        **call.head("chat.completion"),
        "choices": [_choice(call, index, result) for index, result in enumerate(results)],
        "usage": usage_json([finish.usage for finish in finishes]),
    }
    prompt = call.generation.prompt_ids
    if call.token_ids:
        answer["prompt_token_ids"] = prompt
    if call.prompt_logprobs >= 0:
        scored = call.generation.prompt_logprobs()
        answer["prompt_logprobs"] = prompt_entries(prompt, scored, call.names, call.prompt_logprobs)
    return answer


def _choice(call: ChatCall, index: int, result: ChoiceResult) -> dict[str, Any]:
    content, calls = _read(call.tools, result.text)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["tool_calls"] = [one.json() for one in calls]
    logprobs = None
    shown = visible(result.ids, result.n_prompt, result.stop, with_stop=call.generation.request.include_stop)
    if call.top_logprobs >= 0:
        entries = (result.logprobs or [])[:shown]
        logprobs = {
            "content": chat_entries(result.ids[:shown], entries, call.names, call.top_logprobs),
            "refusal": None,
        }
    choice = {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(call.tools, result.finish_reason, bool(calls)),
    }
    if call.token_ids:
        choice["token_ids"] = result.ids[:shown]
    return choice


def _read(tools: ToolPlan, text: str) -> tuple[str | None, list[Call]]:
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


# ---------------------------------------------------------------- the stream


async def _stream(call: ChatCall, writer: ChunkWriter, end: Any) -> AsyncIterator[bytes]:
    generation = call.generation
    try:
        # Indices have to appear in their order, so all choices begin before any goes on.
        if writer.progress:
            writer.so_far(usage_json(generation.usages()))
        first = b',"prompt_token_ids":' + orjson.dumps(generation.prompt_ids) if call.token_ids else b""
        roles = [
            writer.chat(index, b'{"role":"assistant","content":""}', more=b"" if index else first)
            for index in range(len(generation.branches))
        ]
        yield b"".join(roles)
        streams = [_choice_stream(call.tools) for _ in generation.branches]
        finishes: list[Finish] = []
        while chunks := await generation.batch():
            if writer.progress:
                writer.so_far(usage_json(generation.usages()))
            out: list[bytes] = []
            for chunk in chunks:
                out.append(_pieces(call, writer, streams[chunk.choice], chunk))
                if chunk.finish is not None:
                    finishes.append(chunk.finish)
                    error = failure(chunk.finish)
                    if error is not None:
                        yield b"".join([*out[:-1], event(error.body()), DONE])
                        return
            if data := b"".join(out):
                yield data
        if writer.with_usage:
            yield writer.usage(usage_json([finish.usage for finish in finishes]))
        yield DONE
    except RametError as error:
        yield event(call.error(error).body()) + DONE
    finally:
        end()
        generation.cancel()


def _choice_stream(tools: ToolPlan) -> ToolStream | None:
    return None if tools.mode == "none" else ToolStream(tools)


def _pieces(call: ChatCall, writer: ChunkWriter, tools: ToolStream | None, chunk: Chunk) -> bytes:
    """The chunks that one piece of news becomes: its text or calls, then the end."""
    finish = chunk.finish
    with_stop = call.generation.request.include_stop
    stop = finish.stop if finish is not None else None
    shown = max(0, visible(chunk.ids, chunk.offset, stop, with_stop=with_stop))
    logprobs, more = _logprobs(call, chunk, shown), b""
    if call.token_ids and shown:
        more = b',"token_ids":' + orjson.dumps(chunk.ids[:shown])
    if call.objects is not None and chunk.text:
        more += call.objects.feed(chunk.choice, chunk.text)
    out: list[bytes] = []
    if tools is None:
        if chunk.text or more or (call.top_logprobs >= 0 and chunk.ids):
            out.append(writer.chat(chunk.choice, text_stream(chunk.text), logprobs, more=more))
            more = b""
    else:
        for delta in tools.feed(chunk.text, last=finish is not None):
            out.append(writer.chat(chunk.choice, delta, logprobs, more=more))
            logprobs, more = b"null", b""
    if finish is not None and finish.reason in FINISH_REASONS:
        ended = finish_reason(call.tools, finish.reason, tools is not None and tools.called)
        out.append(writer.chat(chunk.choice, b"{}", finish=b'"%b"' % ended.encode(), more=more))
    return b"".join(out)


def _logprobs(call: ChatCall, chunk: Chunk, shown: int) -> bytes:
    if call.top_logprobs < 0 or not shown:
        return b"null"
    entries: Sequence[TokenLogprob] = (chunk.logprobs or [])[:shown]
    content = chat_entries(chunk.ids[:shown], entries, call.names, call.top_logprobs)
    return orjson.dumps({"content": content, "refusal": None})
