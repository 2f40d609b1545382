"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from ramet.runtime.frontend.requests import ChoiceResult, Chunk, Finish
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.messages import TokenLogprob
from starlette.requests import Request
from starlette.responses import Response

from .chat_call import ChatCall, finish_reason, read_answer, start_chat, thoughts_of
from .chat_stream import ChoiceStream
from .fields import ChatBody, parse
from .logprobs import chat_entries, prompt_entries
from .reasoning import split
from .server import FINISH_REASONS, Server, failure, read_body, usage_json, watcher, watching
from .sse import DONE, ChunkWriter, EventStream, chunk_writer, event
from .visible import visible


async def chat_completions(server: Server, request: Request, tenant: str) -> Response:
    body = parse(ChatBody, await read_body(request))
    server.check_model(body.model)
    ignored = body.ignored()
    headers = {"x-ramet-ignored": ", ".join(ignored)} if ignored else {}
    call = await start_chat(server, body, tenant)
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
        "usage": usage_json(
            [finish.usage for finish in finishes], thoughts_of(call, [result.ids for result in results])
        ),
    }
    prompt = call.generation.prompt_ids
    if call.token_ids:
        answer["prompt_token_ids"] = prompt
    if call.prompt_logprobs >= 0:
        scored = call.generation.prompt_logprobs()
        answer["prompt_logprobs"] = prompt_entries(prompt, scored, call.names, call.prompt_logprobs)
    return answer


def _choice(call: ChatCall, index: int, result: ChoiceResult) -> dict[str, Any]:
    thought, said = "", result.text
    if call.reasoning is not None:
        thought, said = split(result.text, call.reasoning.inside)
    content, calls = read_answer(call.tools, said)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if call.reasoning is not None and call.reasoning.shown:
        message["reasoning_content"] = thought or None
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
        streams = [ChoiceStream.of(call) for _ in generation.branches]
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
            ids = [generation.partial(choice)[1] for choice in range(len(generation.branches))]
            yield writer.usage(usage_json([finish.usage for finish in finishes], thoughts_of(call, ids)))
        yield DONE
    except RametError as error:
        yield event(call.error(error).body()) + DONE
    finally:
        end()
        generation.cancel()


def _pieces(call: ChatCall, writer: ChunkWriter, stream: ChoiceStream, chunk: Chunk) -> bytes:
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
    always = bool(more) or (call.top_logprobs >= 0 and bool(chunk.ids))
    for delta in stream.deltas(chunk.text, last=finish is not None, always=always):
        out.append(writer.chat(chunk.choice, delta, logprobs, more=more))
        logprobs, more = b"null", b""
    if finish is not None and finish.reason in FINISH_REASONS:
        ended = finish_reason(call.tools, finish.reason, stream.called)
        out.append(writer.chat(chunk.choice, b"{}", finish=b'"%b"' % ended.encode(), more=more))
    return b"".join(out)


def _logprobs(call: ChatCall, chunk: Chunk, shown: int) -> bytes:
    if call.top_logprobs < 0 or not shown:
        return b"null"
    entries: Sequence[TokenLogprob] = (chunk.logprobs or [])[:shown]
    content = chat_entries(chunk.ids[:shown], entries, call.names, call.top_logprobs)
    return orjson.dumps({"content": content, "refusal": None})
