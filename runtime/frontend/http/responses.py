"""POST /v1/responses: OpenAI's newer API, as far as it needs no memory. Every request brings its whole conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from ramet.runtime.frontend.requests import ChoiceResult, Chunk, Finish
from ramet.runtime.protocol.errors import RametError
from starlette.requests import Request
from starlette.responses import Response

from .chat_call import ChatCall, read_answer, start_chat, thoughts_of
from .chat_stream import ChoiceStream
from .errors import HttpError
from .fields import parse
from .logprobs import chat_entries
from .reasoning import split
from .responses_input import ResponsesBody, conversation
from .responses_output import Output
from .server import Server, failure, read_body, watcher, watching
from .sse import EventStream
from .visible import visible

_PARAMS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
}


async def responses(server: Server, request: Request, tenant: str) -> Response:
    body = parse(ResponsesBody, await read_body(request))
    server.check_model(body.model)
    ignored = body.ignored()
    headers = {"x-ramet-ignored": ", ".join(ignored)} if ignored else {}
    try:
        call = await start_chat(server, conversation(body), tenant)
    except HttpError as error:
        raise _named(error) from error
    output, generation = Output(body, call.created), call.generation
    if body.stream:
        watch = watcher(request, generation.cancel)
        try:
            await generation.accepted()
        except RametError as error:
            watch.cancel()
            raise _named(call.error(error)) from error
        return EventStream(_stream(call, output, watch.cancel), headers)
    async with watching(request, generation.cancel):
        try:
            (result,) = await generation.result()
        except RametError as error:
            raise _named(call.error(error)) from error
    finish = Finish(result.finish_reason, result.usage, result.stop, result.message)
    if (failed := failure(finish)) is not None:
        raise failed
    return Response(orjson.dumps(_whole(call, output, result, finish)), 200, headers, "application/json")


def _named(error: HttpError) -> HttpError:
    """With the names that fields have here."""
    param = error.param
    for theirs, ours in _PARAMS.items():
        if param is not None and param.split(".")[0] == theirs:
            param = ours + param[len(theirs) :]
    return HttpError(error.status, error.message, kind=error.kind, param=param, code=error.code)


def _whole(call: ChatCall, output: Output, result: ChoiceResult, finish: Finish) -> dict[str, Any]:
    thought, said = "", result.text
    if call.reasoning is not None:
        thought, said = split(result.text, call.reasoning.inside)
        if thought:
            list(output.thought(thought))
    content, calls = read_answer(call.tools, said)
    if content is not None:
        shown = visible(result.ids, result.n_prompt, result.stop)
        entries: list[dict[str, Any]] = []
        if call.top_logprobs >= 0:
            entries = chat_entries(result.ids[:shown], (result.logprobs or [])[:shown], call.names, call.top_logprobs)
        list(output.text(content, entries))
    for one in calls:
        list(output.call(one.id, one.name))
        list(output.arguments(one.arguments))
    list(output.end(finish.reason, [finish.usage], thoughts_of(call, [result.ids])))
    return output.whole("incomplete" if finish.reason == "length" else "completed", [finish.usage])


async def _stream(call: ChatCall, output: Output, end: Callable[[], object]) -> AsyncIterator[bytes]:
    stream = ChoiceStream.of(call)
    try:
        yield b"".join(output.begin())
        while chunks := await call.generation.batch():
            for chunk in chunks:
                failed = failure(chunk.finish) if chunk.finish is not None else None
                if failed is not None:
                    yield b"".join(output.fail(failed.body()["error"]))
                    return
                out = _pieces(call, output, stream, chunk)
                if chunk.finish is not None:
                    thought = thoughts_of(call, [call.generation.partial()[1]])
                    out += b"".join(output.end(chunk.finish.reason, [chunk.finish.usage], thought))
                if out:
                    yield out
    except RametError as error:
        yield b"".join(output.fail(_named(call.error(error)).body()["error"]))
    finally:
        end()
        call.generation.cancel()


def _pieces(call: ChatCall, output: Output, stream: ChoiceStream, chunk: Chunk) -> bytes:
    entries: list[dict[str, Any]] = []
    if call.top_logprobs >= 0 and stream.tools is None:
        shown = max(0, visible(chunk.ids, chunk.offset, chunk.finish.stop if chunk.finish is not None else None))
        entries = chat_entries(chunk.ids[:shown], (chunk.logprobs or [])[:shown], call.names, call.top_logprobs)
    out: list[bytes] = []
    for delta in map(orjson.loads, stream.deltas(chunk.text, last=chunk.finish is not None, always=bool(entries))):
        if "reasoning_content" in delta:
            out.extend(output.thought(delta["reasoning_content"]))
        if "content" in delta:
            out.extend(output.text(delta["content"], entries))
        for one in delta.get("tool_calls", ()):
            function = one["function"]
            if "id" in one:
                out.extend(output.call(one["id"], function["name"]))
            out.extend(output.arguments(function["arguments"]))
    return b"".join(out)
