"""The official client against a live server. Every reply is validated strictly against the client's own types."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from typing import Any, Optional

import httpx
import openai
import pytest
from live import Live
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, Field
from ramet.runtime.frontend.partial_json import read

from ramet.extraction.streaming import partial_model

MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]


class Strict(httpx.BaseTransport):
    """Reads each reply whole and validates it before the client sees it."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport()
        self.checked = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply = self._inner.handle_request(request)
        body = reply.read()
        assert reply.headers["x-request-id"]
        if reply.status_code == 200:
            self._check(request.url.path, reply.headers["content-type"], body)
        return httpx.Response(reply.status_code, headers=reply.headers, content=body)

    def _check(self, path: str, kind: str, body: bytes) -> None:
        self.checked += 1
        if kind.startswith("text/event-stream"):
            events = [line[6:] for line in body.split(b"\n\n") if line]
            assert events.pop() == b"[DONE]"
            for event in events:
                ChatCompletionChunk.model_validate(json.loads(event), strict=True)
        elif path == "/v1/chat/completions":
            ChatCompletion.model_validate(json.loads(body), strict=True)
        elif path == "/v1/completions":
            Completion.model_validate(json.loads(body), strict=True)
        else:
            for entry in json.loads(body)["data"]:
                Model.model_validate(entry, strict=True)


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    transport = Strict()
    with httpx.Client(transport=transport, timeout=120) as web:
        yield openai.OpenAI(base_url=live.url + "/v1", api_key="none", http_client=web, max_retries=0)
    assert transport.checked


def test_models(client: openai.OpenAI) -> None:
    assert {"default", "smollm2", "smollm2-135m-instruct"} <= {model.id for model in client.models.list()}


def test_chat_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    fields: Any = {"model": "default", "messages": MESSAGES, "temperature": 0, "max_tokens": 12, "logprobs": True}
    whole = client.chat.completions.create(**fields)
    parts = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    joined = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert joined == whole.choices[0].message.content
    assert parts[-1].usage is not None and whole.usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details is not None


def test_stream_helper(client: openai.OpenAI) -> None:
    fields: Any = {"model": "default", "messages": MESSAGES, "n": 2, "seed": 3}
    with client.chat.completions.stream(**fields, extra_body={"choice": ["red", "dark green"]}) as stream:
        final = stream.get_final_completion()
    assert all(choice.message.content in ("red", "dark green") for choice in final.choices)
    assert [choice.index for choice in final.choices] == [0, 1]
    assert all(choice.message.role == "assistant" for choice in final.choices)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt=["One,", "Two,"], max_tokens=4, logprobs=2, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].logprobs is not None and len(answer.choices[0].logprobs.tokens or []) == 4


def test_a_seed_gives_the_same_choices_twice(client: openai.OpenAI) -> None:
    fields: Any = {"model": "default", "messages": MESSAGES, "max_tokens": 10, "n": 3, "seed": 11, "temperature": 1.0}
    first, second = (client.chat.completions.create(**fields) for _ in range(2))
    texts = [[choice.message.content for choice in answer.choices] for answer in (first, second)]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1


class Colour(enum.Enum):
    red = "red"
    green = "green"


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


class Record(BaseModel):
    title: str = Field(max_length=16)
    note: Optional[str] = Field(max_length=8)  # noqa: UP045
    colour: Colour
    people: list[Person] = Field(min_length=1, max_length=2)


class Tree(BaseModel):
    value: int = Field(ge=0, le=9)
    children: list[Tree] = Field(max_length=1)


def test_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="default", messages=MESSAGES, response_format=Record, max_tokens=300, temperature=0
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Record) and 1 <= len(parsed.people) <= 2


def test_parse_of_a_recursive_model(client: openai.OpenAI) -> None:
    try:
        answer = client.chat.completions.parse(
            model="default", messages=MESSAGES, response_format=Tree, max_tokens=200, temperature=1.0, seed=1
        )
    except openai.LengthFinishReasonError:
        return  # a tree may grow beyond any limit; what it must not do is to be invalid and called complete
    assert isinstance(answer.choices[0].message.parsed, Tree)


def test_parse_that_is_cut_short_says_length(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="default", messages=MESSAGES, response_format=Record, max_tokens=3)


def test_parsed_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="default", messages=MESSAGES, response_format=Person, max_tokens=120, temperature=0
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)


def test_a_stream_holds_the_object_so_far_and_its_finished_items(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "record", "schema": Record.model_json_schema()}}
    options: Any = {"include_partial": True}
    stream = client.chat.completions.create(
        model="default", messages=MESSAGES, response_format=form, stream=True, stream_options=options, seed=3, n=2
    )
    texts, snapshots, items = ["", ""], [list[Any](), list[Any]()], [list[Any](), list[Any]()]
    for chunk in stream:
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        extra = choice.model_extra or {}
        if "partial" in extra:
            assert extra["partial"] == read(texts[choice.index]).value
            snapshots[choice.index].append(extra["partial"])
        items[choice.index] += extra.get("finished_items", [])
    for text, shots, finished in zip(texts, snapshots, items, strict=True):
        record = Record.model_validate_json(text)
        typed = [partial_model(Record).model_validate(shot) for shot in shots if shot is not None]
        assert len(typed) > 3 and Record.model_validate(typed[-1].model_dump()) == record
        assert [item["path"] for item in finished] == [f"/people/{number}" for number in range(len(record.people))]
        assert [Person.model_validate(item["value"]) for item in finished] == record.people


@pytest.mark.parametrize("extra", [{}, {"response_format": {"type": "text"}}, {"stream": False}, {"regex": "a+"}])
def test_the_object_so_far_needs_a_stream_of_json(live: Live, extra: dict[str, Any]) -> None:
    body = {"model": "default", "messages": MESSAGES, "stream": True, "stream_options": {"include_partial": True}}
    reply = httpx.post(f"{live.url}/v1/chat/completions", json={**body, **extra}, timeout=60)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "stream_options"


def test_errors_carry_their_fields(client: openai.OpenAI, live: Live) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="default", messages=MESSAGES, temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    client.models.list()


def test_asynchronous_client(live: Live) -> None:
    import asyncio

    async def body() -> None:
        async with openai.AsyncOpenAI(base_url=live.url + "/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(model="default", messages=MESSAGES, max_tokens=4, temperature=0)
                    for _ in range(4)
                )
            )
            assert len({answer.choices[0].message.content for answer in answers}) == 1

    asyncio.run(body())
