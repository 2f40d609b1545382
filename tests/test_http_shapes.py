"""The HTTP face over a scripted scheduler: shapes of answers and errors, checked with the official client's types."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from fake_scheduler import ByteTokenizer, FakeScheduler, fresh_epoch
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from ramet.runtime.frontend.client import Client
from ramet.runtime.frontend.http import create_app
from ramet.runtime.protocol import messages as m
from ramet.runtime.protocol.errors import InvalidConstraint, UnsupportedConstraint
from ramet.runtime.protocol.ids import unpack_ids
from ramet.runtime.store import SamplingMeta

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
USER = [{"role": "user", "content": "hello"}]


class Meta(SimpleNamespace):
    """The fields of a model's metadata that the server reads."""

    def __init__(self) -> None:
        super().__init__(
            name="tiny-test",
            aliases=("tiny",),
            chat_template=TEMPLATE,
            bos_token="",
            eos_token="",
            add_bos=False,
            sampling=SamplingMeta(temperature=0.6, top_k=20),
        )


def compile_stub(spec: m.ConstraintSpec) -> object:
    if "objekt" in spec.text:
        raise InvalidConstraint("'objekt' is no type")
    if "contains" in spec.text:
        raise UnsupportedConstraint("contains cannot be enforced", keyword="contains", pointer="/contains")
    return object()


@contextlib.asynccontextmanager
async def http(tmp_path: Path, api_keys: tuple[str, ...] = (), **settings: Any) -> AsyncIterator[Any]:
    endpoint = f"ipc://{tmp_path}/f.sock"
    async with FakeScheduler(endpoint, fresh_epoch(), **settings) as scheduler:
        client = Client(endpoint, ByteTokenizer(), compile=compile_stub)
        app = create_app(client, SimpleNamespace(meta=Meta()), tokenizer=ByteTokenizer(), api_keys=api_keys)  # type: ignore[arg-type]
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:
                yield SimpleNamespace(web=web, scheduler=scheduler, client=client, app=app)


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 20))


def events(text: str) -> list[Any]:
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def check_error(reply: httpx.Response, status: int, param: str | None = None, code: str | None = None) -> str:
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    if param is not None:
        assert body["error"]["param"] == param, body
    if code is not None:
        assert body["error"]["code"] == code, body
    assert reply.headers["x-request-id"]
    return str(body["error"]["message"])


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "default", "messages": USER, "max_tokens": 8, **fields}


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "default", "prompt": "hello", "max_tokens": 8, **fields}


def test_chat_validates_strictly_and_counts(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            reply = await it.web.post("/v1/chat/completions", json=chat(seed=1, n=2, logprobs=True, top_logprobs=2))
            assert reply.status_code == 200, reply.text
            answer = ChatCompletion.model_validate(reply.json(), strict=True)
            assert [choice.index for choice in answer.choices] == [0, 1]
            prompt = len(TEMPLATE_TEXT)
            assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
            assert answer.usage.prompt_tokens_details.cached_tokens == 0
            counts = (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens)
            assert counts == (prompt, 16, prompt + 16)
            for choice in answer.choices:
                assert choice.finish_reason == "length" and choice.message.role == "assistant"
                assert choice.logprobs is not None and choice.logprobs.content is not None
                spelled = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content)
                assert spelled.decode() == choice.message.content
                assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)

    TEMPLATE_TEXT = "<user>hello</><assistant>"
    run(body)


@pytest.mark.parametrize("usage", [True, False])
def test_streamed_chat_equals_whole(tmp_path: Path, usage: bool) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            fields = chat(seed=3, n=3, stop=["bad"], logprobs=True, max_tokens=60)
            whole = (await it.web.post("/v1/chat/completions", json=fields)).json()
            reply = await it.web.post(
                "/v1/chat/completions", json={**fields, "stream": True, "stream_options": {"include_usage": usage}}
            )
            assert reply.headers["content-type"].startswith("text/event-stream")
            chunks = events(reply.text)
            for chunk in chunks:
                ChatCompletionChunk.model_validate(chunk, strict=True)
            assert len({chunk["id"] for chunk in chunks}) == 1
            if usage:
                last = chunks.pop()
                assert last["choices"] == [] and last["usage"] == whole["usage"]
                assert all(chunk["usage"] is None for chunk in chunks)
            else:
                assert all("usage" not in chunk for chunk in chunks)
            assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
            for index, choice in enumerate(whole["choices"]):
                mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
                assert [one["delta"].get("role") for one in mine].count("assistant") == 1
                assert "".join(one["delta"].get("content") or "" for one in mine) == choice["message"]["content"]
                reasons = [one["finish_reason"] for one in mine if one["finish_reason"]]
                assert reasons == [choice["finish_reason"]] and mine[-1]["finish_reason"]
                entries = [entry for one in mine if one["logprobs"] for entry in one["logprobs"]["content"]]
                assert entries == choice["logprobs"]["content"]

    run(body)


def test_completions_of_every_kind_of_prompt(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            for prompt, count in (("hi", 1), (["hi", "ho"], 2), ([104, 105], 1), ([[104], [105, 106]], 2)):
                fields = completion(prompt=prompt, n=2, seed=4, logprobs=1, echo=True)
                reply = await it.web.post("/v1/completions", json=fields)
                # Not validated strictly: the first token of an echoed prompt has a null, as everywhere.
                answer = from_json(reply.text)
                assert [choice.index for choice in answer.choices] == list(range(2 * count))
                streamed = events((await it.web.post("/v1/completions", json={**fields, "stream": True})).text)
                for choice in answer.choices:
                    mine = [one["choices"][0] for one in streamed if one["choices"][0]["index"] == choice.index]
                    assert "".join(one["text"] for one in mine) == choice.text
                    tokens = [token for one in mine if one["logprobs"] for token in one["logprobs"]["tokens"]]
                    offsets = [at for one in mine if one["logprobs"] for at in one["logprobs"]["text_offset"]]
                    assert choice.logprobs is not None and choice.logprobs.text_offset is not None
                    assert tokens == choice.logprobs.tokens and offsets == choice.logprobs.text_offset
                    assert "".join(tokens) == choice.text

    def from_json(text: str) -> Any:
        return json.loads(text, object_hook=lambda entries: SimpleNamespace(**entries))

    run(body)


def test_strict_completion_and_defaults(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            reply = await it.web.post("/v1/completions", json={"model": "tiny", "prompt": "hello"})
            answer = Completion.model_validate(reply.json(), strict=True)
            assert answer.usage is not None and answer.usage.completion_tokens == 16
            reply = await it.web.post("/v1/chat/completions", json={"model": "tiny-test", "messages": USER})
            assert reply.json()["usage"]["completion_tokens"] == it.client.context - len("<user>hello</><assistant>")

    run(body)


def test_echo_scores_the_prompt_without_generating(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            fields = completion(prompt="Your answer: Yes", echo=True, max_tokens=0, logprobs=1)
            answer = (await it.web.post("/v1/completions", json=fields)).json()
            (choice,) = answer["choices"]
            assert choice["text"] == "Your answer: Yes" and choice["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == 0
            assert choice["logprobs"]["token_logprobs"] == [None] + [-1.0] * 15
            assert choice["logprobs"]["text_offset"] == list(range(16))

    run(body)


BAD_CHAT: list[tuple[dict[str, Any], int, str | None, str | None]] = [
    ({"temperature": -1}, 400, "temperature", "invalid_value"),
    ({"temperature": "hot"}, 400, "temperature", "invalid_type"),
    ({"top_p": 2}, 400, "top_p", None),
    ({"n": 0}, 400, "n", None),
    ({"model": "gpt-4"}, 404, "model", "model_not_found"),
    ({"messages": []}, 400, "messages", None),
    ({"messages": [{"content": "x"}]}, 400, "messages.0.role", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content", None),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias", None),
    ({"logit_bias": {"999": 1}}, 400, "logit_bias", None),
    ({"stop_token_ids": [999]}, 400, "stop_token_ids", None),
    ({"top_logprobs": 2}, 400, "top_logprobs", None),
    ({"response_format": {"type": "xml"}}, 400, "response_format.type", None),
    ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema", None),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objekt"}}}},
        400,
        "response_format",
        "invalid_constraint",
    ),
    ({"guided_json": {"contains": {}}}, 400, "guided_json", "unsupported_constraint"),
    ({"regex": "a", "choice": ["b"]}, 400, "choice", None),
    ({"guided_whitespace_pattern": " *"}, 400, "guided_whitespace_pattern", "unsupported_parameter"),
    ({"structural_tag": {}, "bad_words": ["x"]}, 400, "bad_words", "unsupported_parameter"),
    ({"structured_outputs": {"structural_tag": "x"}}, 400, "structured_outputs.structural_tag", None),
    ({"functions": [{"name": "f"}]}, 400, "functions", "unsupported_parameter"),
    ({"tool_choice": "required"}, 400, "tool_choice", None),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "messages", "context_length_exceeded"),
    ({"continue_final_message": True}, 400, "messages", None),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "status", "param", "code"), BAD_CHAT)
def test_bad_chat_requests(
    tmp_path: Path, fields: dict[str, Any], status: int, param: str | None, code: str | None, stream: bool
) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            reply = await it.web.post("/v1/chat/completions", json=chat(stream=stream, **fields))
            check_error(reply, status, param, code)
            assert not it.scheduler.got(m.Submit) and it.client.open_requests == 0

    run(body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [5, 267]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [[1], [999]]}, "prompt"),
        ({"prompt": [1, "a"]}, None),
        ({"prompt": None}, None),
        ({"logprobs": -5}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_bad_completions(tmp_path: Path, fields: dict[str, Any], param: str | None) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            check_error(await it.web.post("/v1/completions", json=completion(**fields)), 400, param)
            await asyncio.sleep(0.02)
            assert it.client.open_requests == 0

    run(body)


def test_bodies_that_are_no_json(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            surrogate = b'{"model":"default","messages":[{"role":"user","content":"hi \\ud800"}]}'
            for raw in (b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b'{"model": NaN}', surrogate):
                for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
                    check_error(await it.web.post(path, content=raw), 400)
            check_error(await it.web.get("/nowhere"), 404)
            check_error(await it.web.get("/v1/chat/completions"), 405)
            assert (await it.web.post("/v1/chat/completions", json=chat())).status_code == 200

    run(body)


def test_refusals_come_as_statuses_before_any_byte(tmp_path: Path) -> None:
    async def body() -> None:
        for code, status in (("queue_full", 429), ("draining", 503), ("pool_too_small", 400), ("timeout", 504)):
            async with http(tmp_path, reject=lambda s: m.Rejected(s.id, code, "because")) as it:  # noqa: B023
                for stream in (False, True):
                    reply = await it.web.post("/v1/chat/completions", json=chat(stream=stream))
                    assert check_error(reply, status, code=code) == "because"
                    assert ("retry-after" in reply.headers) == (status in (429, 503))

    run(body)


def test_unknown_fields_are_named_and_ignored(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            reply = await it.web.post("/v1/chat/completions", json=chat(user="me", store=False, best_of=1))
            assert reply.status_code == 200
            assert reply.headers["x-ramet-ignored"] == "best_of, store, user"
            reply = await it.web.post("/v1/chat/completions", json=chat(**{"日本": 1, "a\nb": 2}))
            assert reply.status_code == 200
            assert reply.headers["x-ramet-ignored"] == "\\u65e5\\u672c, a\\nb"

    run(body)


def test_request_ids_and_keys(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path, api_keys=("one", "two")) as it:
            check_error(await it.web.post("/v1/chat/completions", json=chat()), 401)
            assert (await it.web.get("/health")).status_code == 200
            tenants = set()
            for route in it.app.routes:  # whatever is added later: nothing is made or changed without a key
                for method in (route.methods or set()) - {"GET", "HEAD"}:
                    path = route.path.format_map(collections.defaultdict(lambda: "x"))
                    assert (await it.web.request(method, path)).status_code == 401, (method, path)
            for key in ("one", "two"):
                headers = {"authorization": f"Bearer {key}", "x-request-id": "mine"}
                reply = await it.web.post("/v1/chat/completions", json=chat(cache_salt="s"), headers=headers)
                assert reply.status_code == 200 and reply.headers["x-request-id"] == "mine"
                namespace = it.scheduler.got(m.Submit)[-1].namespace
                assert namespace.salt == "s"
                tenants.add(namespace.tenant)
            assert len(tenants) == 2 and "" not in tenants

    run(body)


def test_a_tenant_aborts_only_requests_of_its_own(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path, api_keys=("one", "two"), auto=False) as it:
            one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
            asked = {"text": "hello", "rid": "r", "sampling_params": {"max_new_tokens": 4}}
            runs = asyncio.create_task(it.web.post("/generate", json=asked, headers=one))
            while not it.scheduler.got(m.Submit):
                await asyncio.sleep(0.01)
            for wanted in ({"rid": "r"}, {"abort_all": True}):
                assert (await it.web.post("/abort_request", json=wanted, headers=two)).status_code == 200
            await asyncio.sleep(0.1)
            assert not it.scheduler.got(m.Cancel) and not runs.done()
            await it.web.post("/abort_request", json={"rid": "r"}, headers=one)
            assert (await runs).json()["error"]["code"] == "cancelled"

    run(body)


def test_documents_reach_the_template(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            it.app.state.server.meta.chat_template = (
                TEMPLATE + "{% for d in documents or [] %}[{{ d.text }}]{% endfor %}"
            )
            fields = chat(documents=[{"text": "one"}, {"text": "two"}])
            assert (await it.web.post("/v1/chat/completions", json=fields)).status_code == 200
            assert bytes(unpack_ids(it.scheduler.got(m.Submit)[-1].ids)).endswith(b"[one][two]")
            assert (await it.web.post("/v1/chat/completions", json=chat())).status_code == 200

    run(body)


def test_what_is_not_asked_for_is_as_the_model_has_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            sent = (
                ("/v1/chat/completions", chat()),
                ("/v1/completions", completion()),
                ("/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 3}}),
            )
            for path, fields in sent:
                assert (await it.web.post(path, json=fields)).status_code == 200
                sampling = it.scheduler.got(m.Submit)[-1].sampling
                assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 1.0)
            assert (await it.web.post("/v1/completions", json=completion(temperature=1, top_k=0))).status_code == 200
            sampling = it.scheduler.got(m.Submit)[-1].sampling
            assert (sampling.temperature, sampling.top_k) == (1.0, -1)

    run(body)


def test_what_is_asked_for_reaches_the_scheduler(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            fields = chat(
                temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, frequency_penalty=0.2, presence_penalty=0.3,
                repetition_penalty=1.1, logit_bias={"5": -100}, stop="x", stop_token_ids=[9], ignore_eos=True,
                min_tokens=2, priority=3, max_completion_tokens=4, timeout_s=9,
            )  # fmt: skip
            assert (await it.web.post("/v1/chat/completions", json=fields)).status_code == 200
            submit = it.scheduler.got(m.Submit)[-1]
            sampling = submit.sampling
            assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
            penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
            assert penalties == (0.2, 0.3, 1.1) and sampling.logit_bias == ((5, -100.0),)
            assert submit.stops == m.Stops((b"x",), (9,), True)
            assert submit.limits == m.Limits(4, 2) and submit.priority == 3
            assert 8000 < submit.remaining_ms <= 9000

    run(body)


CALLS = '[{"name":"weather","arguments":{"city":"Köln","days":[1,2],"q":"a\\"}]"}},{"name":"now","arguments":{}}]'
CALLED = [("weather", '{"city":"Köln","days":[1,2],"q":"a\\"}]"}'), ("now", "{}")]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    },
    {"type": "function", "function": {"name": "now"}},
]


@pytest.mark.parametrize(
    ("choice", "text", "reason", "calls", "content"),
    [
        (
            "required",
            CALLS,
            "tool_calls",
            [("weather", '{"city":"Köln","days":[1,2],"q":"a\\"}]"}'), ("now", "{}")],
            None,
        ),
        ({"type": "function", "function": {"name": "now"}}, "{}", "stop", [("now", "{}")], None),
        ("auto", "just text < and <tool", "stop", [], "just text < and <tool"),
        (
            "auto",
            'Let me see. <tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>',
            "tool_calls",
            [("now", '{"a":1}')],
            "Let me see.",
        ),
        ("auto", "<tool_call>nonsense</tool_call>", "stop", [], "<tool_call>nonsense</tool_call>"),
        ("none", "<tool_call>x", "stop", [], "<tool_call>x"),
    ],
)
def test_tool_calls_whole_and_streamed(
    tmp_path: Path, choice: Any, text: str, reason: str, calls: list[tuple[str, str]], content: str | None
) -> None:
    async def body() -> None:
        async with http(tmp_path, script=lambda _: text.encode()) as it:
            fields = chat(tools=TOOLS, tool_choice=choice, max_tokens=400)
            reply = await it.web.post("/v1/chat/completions", json=fields)
            answer = ChatCompletion.model_validate(reply.json(), strict=True)
            message = answer.choices[0].message
            assert answer.choices[0].finish_reason == reason
            got = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]  # type: ignore[union-attr]
            assert got == calls and message.content == content
            assert len({call.id for call in message.tool_calls or []}) == len(calls)
            web = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=it.web)
            async with web.chat.completions.stream(
                model="default",
                messages=USER,
                tools=TOOLS,
                tool_choice=choice,
                max_tokens=400,  # type: ignore[arg-type]
            ) as stream:
                final = await stream.get_final_completion()
            message = final.choices[0].message  # type: ignore[assignment]
            got = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]  # type: ignore[union-attr]
            assert got == calls and final.choices[0].finish_reason == reason
            assert (message.content or None) == content or (message.content or "").strip() == content
            assert message.role == "assistant"

    run(body)


def test_messages_of_every_shape(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
            messages = [
                {"role": "system", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": " brief"}]},
                {"role": "user", "content": "time?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "12"},
                {"role": "user", "content": ""},
            ]
            reply = await it.web.post("/v1/chat/completions", json=chat(messages=messages))
            assert reply.status_code == 200, reply.text
            prompt = bytes(json_ids(it.scheduler.got(m.Submit)[-1])).decode()
            assert prompt.startswith("<system>be brief</><user>time?</>") and "12" in prompt
            final = [*USER, {"role": "assistant", "content": "I beg"}]
            reply = await it.web.post("/v1/chat/completions", json=chat(messages=final, continue_final_message=True))
            assert reply.status_code == 200, reply.text
            assert bytes(json_ids(it.scheduler.got(m.Submit)[-1])) == b"<user>hello</><assistant>I beg"

    def json_ids(submit: m.Submit) -> list[int]:
        return [int.from_bytes(submit.ids[i : i + 4], "little") for i in range(0, len(submit.ids), 4)]

    run(body)


def test_models_tokenize_metrics(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            models = (await it.web.get("/v1/models")).json()
            assert [entry["id"] for entry in models["data"]] == ["tiny-test", "default", "tiny"]
            assert (await it.web.get("/v1/models/tiny")).json()["object"] == "model"
            check_error(await it.web.get("/v1/models/other"), 404, code="model_not_found")
            tokens = (await it.web.post("/tokenize", json={"prompt": "hé"})).json()
            assert tokens["tokens"] == list("hé".encode()) and tokens["count"] == 3
            text = (await it.web.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
            assert text["text"] == "hé"
            check_error(await it.web.post("/detokenize", json={"tokens": [999]}), 400, "tokens")
            assert (await it.web.get("/ready")).status_code == 200
            await it.web.post("/v1/chat/completions", json=chat())
            metrics = (await it.web.get("/metrics")).text
            for name in (
                'ramet_blocks{state="locked"}',
                'ramet_requests{state="waiting"}',
                'ramet_tokens_total{kind="forced"}',
                "ramet_preemptions_total",
                'ramet_http_requests_total{path="/v1/chat/completions",status="200"} 1.0',
            ):
                assert name in metrics
            assert (await it.web.get("/flush_cache")).status_code == 200
            assert "/v1/chat/completions" in (await it.web.get("/openapi.json")).json()["paths"]

    run(body)


def test_generate_in_sglangs_shape(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path) as it:
            params = {"max_new_tokens": 6, "temperature": 0.5, "sampling_seed": 3, "skip_special_tokens": True}
            fields: dict[str, Any] = {
                "text": "hello", "sampling_params": params, "return_logprob": True, "logprob_start_len": 1,
                "top_logprobs_num": 2, "return_text_in_logprobs": True,
            }  # fmt: skip
            reply = await it.web.post("/generate", json=fields)
            assert reply.headers["x-ramet-ignored"] == "skip_special_tokens"
            answer = reply.json()
            meta = answer["meta_info"]
            assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (5, 6, 0)
            assert meta["finish_reason"] == {"type": "length", "length": 6}
            assert [entry[1:] for entry in meta["input_token_logprobs"]] == [[ord(c), c] for c in "ello"]
            assert [entry[0] for entry in meta["input_token_logprobs"]] == [None, -1.0, -1.0, -1.0]
            assert "".join(entry[2] for entry in meta["output_token_logprobs"]) == answer["text"]
            assert all(len(tops) == 2 for tops in meta["output_top_logprobs"])
            chunks = events((await it.web.post("/generate", json={**fields, "stream": True})).text)
            assert chunks[-1]["text"] == answer["text"] and chunks[-1]["output_ids"] == answer["output_ids"]
            for before, after in itertools.pairwise(chunks):
                assert after["text"].startswith(before["text"])
            assert [chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1]] == [True] * (len(chunks) - 1)
            several = (await it.web.post("/generate", json={"text": ["a", "b"], "sampling_params": {"n": 2}})).json()
            assert len(several) == 4 and all(len(one["output_ids"]) == 128 for one in several)
            stopped = {"input_ids": [1, 2], "sampling_params": {"stop": ["a", "b", "c"], "max_new_tokens": 400}}
            reason = (await it.web.post("/generate", json=stopped)).json()["meta_info"]["finish_reason"]
            assert reason["type"] == "stop" and reason["matched"] in "abc"
            for bad in ({}, {"text": "a", "input_ids": [1]}, {"input_ids": [999]}, {"text": ""}):
                check_error(await it.web.post("/generate", json=bad), 400)
            for bad in ({"structural_tag": "x"}, {"regex": "a", "ebnf": "b"}, {"json_schema": '{"type":"objekt"}'}):
                check_error(await it.web.post("/generate", json={"text": "a", "sampling_params": bad}), 400)
            check_error(await it.web.post("/generate", json={"text": "a", "token_ids_logprob": [1]}), 400)
            assert (await it.web.get("/get_model_info")).json()["is_generation"] is True
            assert (await it.web.get("/dashboard")).text.startswith("<!doctype html>")
            assert (await it.web.get("/docs")).status_code == 200

    run(body)


def test_a_failing_choice_is_an_error_also_in_a_stream(tmp_path: Path) -> None:
    async def body() -> None:
        async with http(tmp_path, auto=False) as it:
            for stream in (False, True):
                task = asyncio.create_task(it.web.post("/v1/chat/completions", json=chat(stream=stream)))
                await it.scheduler.until(lambda: any(not row.ended for row in it.scheduler.rows))
                row = it.scheduler.rows[-1]
                await it.scheduler.append(row, 65)
                await it.scheduler._end(row, "error")
                reply = await task
                if stream:
                    assert events(reply.text)[-1]["error"]["code"] == "generation_failed"
                else:
                    check_error(reply, 500, code="generation_failed")

    run(body)
