"""Whatever is sent to the server, it answers in time and in its own shape, and the next request is none the wiser."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live import Live, live_server

pytestmark = pytest.mark.slow

ANSWER_S = 10.0
CONTEXT = 256

CHAT = {
    "model": "default",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}],
    "temperature": 0,
    "max_tokens": 6,
    "seed": 3,
    "n": 1,
    "stop": ["zz"],
    "stream": False,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "strict": True,
            "schema": {
                "type": "object",
                "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"enum": [1, "2", None]}},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
}
PLAIN_CHAT = {
    "model": "default",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}],
    "max_completion_tokens": 5,
    "logprobs": True,
    "top_logprobs": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "logit_bias": {"5": -3.5},
    "min_tokens": 2,
    "ignore_eos": False,
    "chat_template_kwargs": {"thinking": True},
}
TOOLS = {
    "model": "default",
    "messages": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
        }
    ],
    "tool_choice": "required",
    "max_tokens": 8,
}
COMPLETION = {
    "model": "default",
    "prompt": [[1, 2, 3], [4, 5]],
    "max_tokens": 4,
    "echo": True,
    "logprobs": 2,
    "n": 2,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.1,
    "stop_token_ids": [7],
    "cache_salt": "s",
    "priority": 1,
    "timeout_s": 5.0,
    "regex": "[a-z]{1,4}",
}
NATIVE = {
    "text": ["Once", "Twice"],
    "sampling_params": {
        "max_new_tokens": 4,
        "min_new_tokens": 1,
        "temperature": 0.7,
        "stop": ["."],
        "regex": "(ab)+",
        "n": 1,
        "seed": 4,
        "json_schema": None,
    },
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs_num": 1,
    "stream": False,
}
REQUESTS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", PLAIN_CHAT),
    ("/v1/chat/completions", TOOLS),
    ("/v1/completions", COMPLETION),
    ("/generate", NATIVE),
]

NUMBERS = [0, 1, -1, 2, 3, 255, 2**31, -(2**31), 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, 1e-320, 5.0]
WORDS = [
    "",
    "a",
    "\x00",
    "\u202e",
    "\U0001f600",
    "</s><|im_end|>",
    "(",
    "(a+)+$",
    "[^",
    "\\p{L}{1,9}",
    "a{999999}",
    "x" * 3000,
    "none",
    "assistant",
    "json_object",
    "default",
    '{"type": "object"}',
    "root ::= ",
    "start: /a/ | start start",
]
SHAPES = [None, True, False, [], {}, [[]], [None], {"": None}, {"type": "objekt"}, {"$ref": "#"}, [1, "a"], [[1], []]]
values = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.sampled_from(SHAPES),
    st.text(max_size=6),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.recursive(st.none() | st.integers(-9, 9), lambda inner: st.lists(inner, max_size=3), max_leaves=5),
)
EXTRA = ["grammar", "regex", "choice", "guided_json", "min_tokens", "ignore_eos", "stop", "whitespace", "ebnf", "foo"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything inside ``value``."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """A request that was valid, with one to three changes; now and then also as broken bytes."""
    path, body = draw(st.sampled_from(REQUESTS))
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        here = [(), *places(body)]
        *parents, last = draw(st.sampled_from(here)) or (draw(st.sampled_from(EXTRA)),)
        holder: Any = body
        for key in parents:
            holder = holder[key]
        if draw(st.integers(0, 4)) == 0 and (not isinstance(holder, dict) or last in holder):
            del holder[last]
        else:
            holder[last] = copy.deepcopy(draw(values))  # the next change may be inside it
    raw = json.dumps(body).encode()
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=4)) + raw[at + draw(st.integers(0, 3)) :]
    return path, raw


@pytest.fixture(scope="module")
def small(model_dir: Path) -> Iterator[Live]:
    """Small pools, so that long requests meet every limit."""
    with live_server(model_dir, context=CONTEXT, kv_tokens=512, max_rows=8, max_queued=16, block_size=4) as server:
        yield server


def normal(server: Live) -> tuple[str, list[Any]]:
    answer = server.chat("Name three colours.", logprobs=True, max_tokens=8, seed=1)["choices"][0]
    return answer["message"]["content"], answer["logprobs"]["content"]


def check(reply: httpx.Response) -> None:
    if reply.status_code == 200:
        assert reply.content
        return
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str) and error["message"]
    assert reply.status_code in (400, 404, 429, 504), (reply.status_code, error)


@pytest.mark.parametrize("name", ["messages", "tools", "self", "bos_token", "add_generation_prompt", "documents", "x"])
def test_names_of_the_template_are_not_the_clients(small: Live, name: str) -> None:
    status = 200 if name == "x" else 400
    small.chat("Hi", status=status, max_tokens=2, chat_template_kwargs={name: "y"})


def test_no_request_harms_the_server(small: Live) -> None:
    before = normal(small)

    @settings(
        max_examples=300,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated())
    def send(request: tuple[str, bytes]) -> None:
        path, raw = request
        started = time.monotonic()
        reply = small.web.post(path, content=raw, headers={"content-type": "application/json"}, timeout=30)
        took = time.monotonic() - started
        check(reply)
        assert took < ANSWER_S, f"{took:.1f} s"

    send()
    assert normal(small) == before
    small.check_blocks()
