"""`RuntimeEndpoint`: programs here, the model behind a ramet server.

Text is encoded here, with the server's own tokeniser; ids go out and chunks come in, over one connection per call. The
server's prefix cache makes up for what is sent again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from ramet.engine_backend import generate_request
from ramet.frontend_lang.backend import Branch, BranchKey, Cut, End, GenCall, TokenChunk
from ramet.frontend_lang.compiled import RemoteRun
from ramet.frontend_lang.graph import Graph
from ramet.frontend_lang.loop import LoopThread
from ramet.frontend_lang.options import Options
from ramet.frontend_lang.token_branch import TokenBranch
from ramet.http_client import HttpClient, Unreachable, lines_of
from ramet.remote_errors import error_from, error_of
from ramet.remote_programs import Programs
from ramet.runtime.frontend.http.remote import Line, TokenizerReply
from ramet.runtime.frontend.requests import ScoreRequest, ScoreResult
from ramet.runtime.protocol.errors import GenerationFailed, InvalidRequest
from ramet.runtime.protocol.messages import TokenLogprob, Usage
from ramet.runtime.tokenizer import Tokenizer
from ramet.text_side import TextSide

_json = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(Line)


class EndpointBackend(TextSide):
    """See ``ramet.frontend_lang.backend``. Branches are not kept: every call sends all its ids."""

    keeps = False

    def __init__(self, loop: LoopThread, http: HttpClient, model: TokenizerReply) -> None:
        tokenizer = Tokenizer(model.definition, model.meta)
        super().__init__(tokenizer, model.meta)
        self.loop = loop
        self.http = http
        self._programs = Programs(loop, http, lambda: self)
        self.context = model.context

    def open(self, path: tuple[int, ...] = ()) -> Branch:
        return TokenBranch(self, path)

    async def flush_cache(self) -> None:
        await call_json(self.http, "POST", "/flush_cache")

    async def server_info(self) -> dict[str, object]:
        return dict(await call_json(self.http, "GET", "/metrics"))

    def close(self) -> None:
        self.loop.call(self.http.close)

    def generate(self, parent: Cut | None, ids: Sequence[int], call: GenCall, keep: bool) -> EndpointStream:
        return EndpointStream(self.http, _json.encode(generate_request(None, list(ids), call, False)))

    async def score(
        self, parent: Cut | None, ids: Sequence[int], continuations: Sequence[Sequence[int]], call: GenCall
    ) -> tuple[list[list[TokenLogprob]], Usage]:
        request = ScoreRequest(list(ids), [list(row) for row in continuations], None, 0, call.priority, call.timeout_s)
        head, body = await self.http.whole("POST", "/v1/remote/score", _json.encode(request))
        if head.status != 200:
            raise error_of(head, body)
        result = msgspec.json.decode(body, type=ScoreResult)
        return [list(row) for row in result.logprobs], result.usage

    def release(self, branch: BranchKey) -> None:
        return

    def start_graph(self, graph: Graph, arguments: Mapping[str, str], options: Options, streamed: bool) -> RemoteRun:
        """A compiled program, run by the server."""
        return self._programs.start(graph, arguments, options, streamed)


class EndpointStream:
    """One generation. The request is sent when iteration begins; leaving it closes the connection."""

    def __init__(self, http: HttpClient, body: bytes) -> None:
        self._http, self._body = http, body

    def branch(self, choice: int) -> BranchKey:
        return choice

    def cancel(self) -> None:
        return  # the connection is closed with the iteration

    async def __aiter__(self) -> AsyncGenerator[TokenChunk, None]:
        prompt_news: Line | None = None
        held: TokenChunk | None = None
        cached = 0
        async with self._http.request("POST", "/v1/remote/generate", self._body) as (head, pieces):
            if head.status != 200:
                raise error_of(head, b"".join([piece async for piece in pieces]))
            async for text in lines_of(pieces):
                line = _lines.decode(text)
                if line.error is not None:
                    raise error_from(line.error)
                if line.done:
                    prompt_news = line
                elif line.chunk is not None:
                    cached = max(cached, line.cached)
                    chunk = line.chunk
                    end = chunk.finish
                    shown = TokenChunk(
                        chunk.choice,
                        chunk.text,
                        chunk.ids,
                        [flag != 0 for flag in chunk.forced],
                        chunk.logprobs,
                        None,
                        None if end is None else End(end.reason, end.usage, end.stop, end.message),
                        cached,
                    )
                    if end is not None and chunk.choice == 0:
                        held = shown  # the prompt's log-probabilities come with the last line
                    else:
                        yield shown
        if prompt_news is None:
            raise GenerationFailed("the server ended the answer before its end")
        if held is not None:
            prompt = (prompt_news.prompt_from, prompt_news.prompt) if prompt_news.prompt else None
            yield TokenChunk(held.choice, held.text, held.ids, held.forced, held.logprobs, prompt, held.end)


async def call_json(http: HttpClient, method: str, path: str, body: Any = None) -> Any:
    """A JSON call. Raises the error that the answer stands for."""
    head, data = await http.whole(method, path, None if body is None else _json.encode(body))
    if head.status != 200:
        raise error_of(head, data)
    return json.loads(data)


# ---------------------------------------------------------------- the public face


class RuntimeEndpoint:
    """A ramet server as the backend of programs: ``set_default_backend(RuntimeEndpoint("http://127.0.0.1:8000"))``.

    Raises Unreachable if nothing answers, and InvalidRequest if it is another kind of server.
    """

    backend: EndpointBackend

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = HttpClient(base_url, headers)
        self._loop = LoopThread("ramet-endpoint")
        try:
            self.backend = self._loop.wait(self._connect())
        except BaseException:
            self._loop.close()
            raise

    async def _connect(self) -> EndpointBackend:
        head, body = await self._http.whole("GET", "/v1/tokenizer")
        if head.status in (401, 403):
            raise error_of(head, body)
        try:
            model = msgspec.json.decode(body, type=TokenizerReply)
        except msgspec.MsgspecError:
            raise InvalidRequest(
                f"{self._http.base_url} is no ramet server (it answered {head.status}): for other servers that speak "
                "OpenAI's API use ramet.OpenAI(model, base_url=...)"
            ) from None
        return EndpointBackend(self._loop, self._http, model)

    def flush_cache(self) -> None:
        """Drop every cached prefix that no running request uses."""
        self._loop.wait(self.backend.flush_cache())

    def get_server_info(self) -> dict[str, object]:
        """Counters of the server: blocks, requests, tokens."""
        return self._loop.wait(self.backend.server_info())

    def get_model_name(self) -> str:
        return self.backend.meta.name

    def close(self) -> None:
        """Hang up. Idempotent."""
        if not self._loop.closed:
            self._loop.call(self._http.close)
            self._loop.close()

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["EndpointBackend", "RuntimeEndpoint", "Unreachable"]
