"""POST /v1/responses with the official client, each answer validated strictly against its types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from live import Live
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, Field, TypeAdapter

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL: Any = {
    "type": "function",
    "name": "look_up",
    "description": "Looks a city up.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
THOUGHT = r"<think>\n[ab]{4,9}\n</think>\n\nso [a-c]{3}"


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with httpx.Client(timeout=120) as web:
        yield openai.OpenAI(base_url=live.url + "/v1", api_key="none", http_client=web, max_retries=0)


def whole(live: Live, status: int = 200, **fields: Any) -> Any:
    fields = {"temperature": 0, "max_output_tokens": 12, **fields}
    answer = live.post("/v1/responses", status, **fields)
    if status == 200:
        Response.model_validate(answer, strict=True)
    return answer


def events(live: Live, **fields: Any) -> list[Any]:
    body = {"model": "default", "temperature": 0, "max_output_tokens": 12, **fields, "stream": True}
    with live.web.stream("POST", "/v1/responses", json=body) as reply:
        assert reply.status_code == 200, reply.read()
        raw = b"".join(reply.iter_raw()).decode()
    found = []
    for block in raw.split("\n\n")[:-1]:
        kind, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
        EVENTS.validate_python(found[-1], strict=False)
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    return found


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """But for ids, times and what was cached."""

    def plain(answer: dict[str, Any]) -> str:
        text = json.dumps(
            {**answer, "id": "", "created_at": 0, "usage": {**answer["usage"], "input_tokens_details": 0}}
        )
        for item in answer["output"]:
            for key in ("id", "call_id"):
                text = text.replace(str(item.get(key)), "")
        return text

    return plain(first) == plain(second)


def test_text_is_that_of_the_chat(live: Live) -> None:
    answer = whole(live, input="Say hello.", instructions="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
    chat = live.post("/v1/chat/completions", messages=messages, temperature=0, max_tokens=12)
    assert answer["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert answer["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {
            "text": {"format": {"type": "json_schema", "name": "x", "schema": TOOL["parameters"]}},
            "max_output_tokens": 40,
        },
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 60},
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look_up"}, "max_output_tokens": 40},
        {"tools": [TOOL], "max_output_tokens": 20},
        {"separate_reasoning": True, "regex": THOUGHT, "max_output_tokens": 40},
    ],
    ids=["text", "logprobs", "schema", "required", "named", "auto", "thought"],
)
def test_a_stream_ends_with_the_whole_answer(live: Live, fields: dict[str, Any]) -> None:
    asked = {"input": "Tell me about Paris.", **fields}
    answer, found = whole(live, **asked), events(live, **asked)
    assert [one["type"] for one in found[:2]] == ["response.created", "response.in_progress"]
    assert found[-1]["type"] == f"response.{answer['status']}"
    assert same(found[-1]["response"], answer), (found[-1]["response"], answer)
    text, arguments = answer["output"][0], answer["output"][-1]
    deltas = "".join(one["delta"] for one in found if one["type"] == "response.output_text.delta")
    if text["type"] == "message":
        assert deltas == text["content"][0]["text"]
    if text["type"] == "reasoning":
        thought = "".join(one["delta"] for one in found if one["type"] == "response.reasoning_text.delta")
        assert thought == text["content"][0]["text"] and deltas == arguments["content"][0]["text"]
        assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] > 2
    if arguments["type"] == "function_call":
        pieces = "".join(one["delta"] for one in found if one["type"].endswith("arguments.delta"))
        assert pieces == arguments["arguments"] and json.loads(pieces)["city"]
    if "include" in fields:
        entries = [entry for one in found if one["type"].endswith("text.delta") for entry in one["logprobs"]]
        assert entries == text["content"][0]["logprobs"] and len(entries[0]["top_logprobs"]) == 2


class City(BaseModel):
    name: str = Field(max_length=12)
    large: bool


def test_the_helpers_of_the_client(client: openai.OpenAI) -> None:
    fields: Any = {"model": "default", "input": "Name a city.", "temperature": 0, "max_output_tokens": 60}
    parsed = client.responses.parse(**fields, text_format=City)
    assert isinstance(parsed.output_parsed, City)
    with client.responses.stream(**fields, text_format=City) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    assert client.responses.create(**fields).output_text


def test_a_conversation_with_calls_goes_on(live: Live) -> None:
    first = whole(live, input="Weather?", tools=[TOOL], tool_choice="required", max_output_tokens=60)
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}, *first["output"]]
    items += [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"} for call in first["output"]
    ]
    second = whole(live, input=[*items, {"type": "reasoning", "summary": []}], tools=[TOOL], tool_choice="none")
    assert second["output"][0]["type"] == "message"
    calls = [
        {"id": call["call_id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in first["output"]
    ]
    messages = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in calls]
    chat = live.post("/v1/chat/completions", messages=messages, temperature=0, max_tokens=12)
    assert second["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"input": [{"type": "computer_call"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content"),
        ({"input": []}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "objekt"}}}}, "text.format"),
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
    ],
)
def test_what_is_not_there_is_named(live: Live, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        error = whole(live, 400, **{"input": "x", **fields}, stream=stream)["error"]
        assert error["param"] == param, error


def test_answers_are_not_kept(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nothing is stored"):
        client.responses.retrieve("resp_1")
