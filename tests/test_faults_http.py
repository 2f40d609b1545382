"""Public fault reports of other servers, each as a test of ours (ids as in the shared cases)."""

from __future__ import annotations

import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from live import END_ID, Live, live_server
from ramet.runtime.protocol.config import Switches

SENTENCE = "The committee met on Tuesday to discuss the harbour, the price of salt and the state of the old bridge. "


def chat_text(events: list[Any], index: int = 0) -> str:
    parts = [
        choice["delta"].get("content") or ""
        for event in events
        for choice in event["choices"]
        if choice["index"] == index
    ]
    return "".join(parts)


def together(count: int, job: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(job, range(count)))


def schema_format(schema: Any, name: str = "answer") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def text_of(answer: Any) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def cold() -> str:
    """A cache salt that nobody has used: what is asked for with it finds nothing cached."""
    return f"salt {time.time_ns()}"


# ---------------------------------------------------------------- stops and text


def test_d01_stop_string_split_over_tokens(live: Live) -> None:
    fields = {"prompt": "Write:", "regex": "ABCDEFGHIJKL", "stop": ["DEFGHIJ"], "max_tokens": 50}
    whole = live.complete(**fields)
    events = live.events("/v1/completions", **fields)
    texts = [choice["text"] for event in events for choice in event["choices"]]
    assert "".join(texts) == "ABC" == whole["choices"][0]["text"]
    assert not any("D" in text for text in texts)
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert reasons == ["stop"] == [whole["choices"][0]["finish_reason"]]


def test_d02_stop_string_inside_a_token(live: Live) -> None:
    full = live.force("xABCDEFGHIJ")
    answer = live.force("xABCDEFGHIJ", stop=["DE"])
    assert text_of(answer) == "xABC" and answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < full["usage"]["completion_tokens"]


def test_d03_own_stops_leave_the_templates_end_alone(live: Live) -> None:
    answer = live.chat(logit_bias={str(END_ID): 100}, stop=["ZZZ"], max_tokens=20)
    assert text_of(answer) == "" and answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("text", ["a歪b🙂c é", "👨‍👩‍👧", "日本"])
def test_d04_characters_split_over_tokens(live: Live, text: str) -> None:
    events = live.events("/v1/completions", prompt="Write:", regex=re.escape(text), max_tokens=60)
    texts = [choice["text"] for event in events for choice in event["choices"]]
    assert "\ufffd" not in "".join(texts) and "".join(texts) == text
    assert text_of(live.force(text)) == text


# ---------------------------------------------------------------- log-probabilities


def test_d05_bytes_of_partial_characters(live: Live) -> None:
    answer = live.chat(regex="🙂", logprobs=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"] > 1
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == "🙂".encode()


@pytest.mark.parametrize("fields", [{"temperature": 0.01, "top_p": 0.3}, {"regex": "a"}])
def test_d06_every_number_is_finite(live: Live, fields: dict[str, Any]) -> None:
    answer = live.complete("Once upon", logprobs=5, max_tokens=8, **fields)
    logprobs = answer["choices"][0]["logprobs"]
    numbers = list(logprobs["token_logprobs"])
    numbers += [value for top in logprobs["top_logprobs"] for value in top.values()]
    assert numbers and all(math.isfinite(number) for number in numbers)


def test_d07_chat_logprobs_without_alternatives(live: Live) -> None:
    answer = live.chat(logprobs=True, max_tokens=3)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"] == 3
    assert all(entry["top_logprobs"] == [] and entry["bytes"] and entry["logprob"] <= 0 for entry in entries)


def test_d08_prompt_logprobs_of_a_cached_prompt(live: Live) -> None:
    prompt, salt = SENTENCE * 2, cold()
    first, second = (live.complete(prompt, echo=True, logprobs=1, max_tokens=0, cache_salt=salt) for _ in range(2))
    values = [answer["choices"][0]["logprobs"]["token_logprobs"] for answer in (first, second)]
    assert len(values[0]) == len(values[1]) == first["usage"]["prompt_tokens"] > 40
    assert values[0][0] is None and values[1][1:] == pytest.approx(values[0][1:], abs=1e-3)


# ---------------------------------------------------------------- cache


def test_d09_the_same_request_again_and_again(live: Live) -> None:
    prompt, salt = SENTENCE * 3, cold()
    answers = [live.complete(prompt, logprobs=1, cache_salt=salt) for _ in range(5)]
    first = [answer["choices"][0]["logprobs"]["token_logprobs"][0] for answer in answers]
    assert len({text_of(answer) for answer in answers}) == 1
    assert first == pytest.approx([first[0]] * 5, abs=1e-3)
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == 0 and all(count > 0 for count in cached[1:])


def test_d10_a_prompt_of_whole_blocks(live: Live) -> None:
    size = live.stats()["block_size"]
    ids, salt = live.tokenizer.encode(SENTENCE * 4)[: 2 * size], cold()
    first, second = (live.complete(ids, cache_salt=salt) for _ in range(2))
    assert text_of(first) == text_of(second)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert 0 < second["usage"]["prompt_tokens_details"]["cached_tokens"] < second["usage"]["prompt_tokens"] == 2 * size


def test_d12_two_equal_prompts_at_once(live: Live) -> None:
    shared, other = "Shared. " + SENTENCE * 5, "Other. " + SENTENCE * 5
    live.post("/flush_cache")
    answers = together(3, lambda i: live.complete(other if i == 2 else shared, max_tokens=24, ignore_eos=True))
    live.post("/flush_cache")
    assert text_of(answers[0]) == text_of(answers[1]) == text_of(live.complete(shared, max_tokens=24, ignore_eos=True))
    assert text_of(answers[2]) == text_of(live.complete(other, max_tokens=24, ignore_eos=True))
    live.check_blocks()


@pytest.mark.slow
def test_d13_blocks_balance_after_shared_load(live: Live) -> None:
    for round in range(2):
        groups = [f"{round} {g} " + SENTENCE * 4 for g in range(4)]
        together(16, lambda i: live.complete(groups[i % 4] + str(i), max_tokens=4))  # noqa: B023
        live.check_blocks()
    live.post("/flush_cache")
    blocks = live.check_blocks()
    assert blocks["free"] == blocks["total"]


def test_d42_cached_tokens_are_told_from_the_first_time_on(live: Live) -> None:
    prompt, salt = SENTENCE * 30, cold()
    before = live.stats()["tokens"]
    first, second = (live.complete(prompt, max_tokens=1, cache_salt=salt) for _ in range(2))
    tokens = first["usage"]["prompt_tokens"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert tokens - 1 >= cached >= tokens - live.stats()["block_size"]
    after = live.stats()["tokens"]
    assert after["cached"] - before["cached"] == cached
    assert after["prompt"] - before["prompt"] == 2 * tokens


def test_d47_salts_do_not_see_each_other(live: Live) -> None:
    live.post("/flush_cache")
    prompt = SENTENCE * 4
    answers = [live.complete(prompt, max_tokens=1, cache_salt=salt) for salt in ("a", "a", "b", None)]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[1] > 0 and cached[0] == cached[2] == cached[3] == 0


def test_d48_a_new_prefix_is_computed_once_for_all(live: Live) -> None:
    prefix, salt = SENTENCE * 18, cold()
    tails = [f" Item {i}: " + SENTENCE[: 60 + i] for i in range(20)]
    before = live.stats()["tokens"]["computed"]
    answers = together(20, lambda i: live.complete(prefix + tails[i], max_tokens=4, cache_salt=salt))
    computed = live.stats()["tokens"]["computed"] - before
    shared = len(live.tokenizer.encode(prefix))
    own = max(answer["usage"]["prompt_tokens"] for answer in answers) - shared
    assert shared > 350
    assert computed < 1.5 * (shared + 20 * own)
    for i in (0, 7, 19):
        assert text_of(live.complete(prefix + tails[i], max_tokens=4, cache_salt=cold())) == text_of(answers[i])


# ---------------------------------------------------------------- life of a request


@pytest.mark.parametrize("stream", [True, False])
def test_d14_a_client_that_leaves_frees_everything(live: Live, stream: bool) -> None:
    body = json.dumps(
        {"model": "default", "prompt": "Count:", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    )
    with socket.create_connection(("127.0.0.1", live.port)) as line:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body.encode())
        until = time.monotonic() + 20
        while not live.stats()["requests"]["running"]:
            assert time.monotonic() < until
            time.sleep(0.02)
        if stream:
            received = b""
            while received.count(b"data: ") < 3:
                received += line.recv(65536)
    # One step may be under way; on a slow machine it takes a while.
    live.idle(1.0 + 3 * live.stats()["step_seconds"])
    live.check_blocks()


@pytest.mark.slow
def test_d15_d16_a_small_pool(model_dir: Path) -> None:
    with live_server(model_dir, kv_tokens=256, context=2048, switches=Switches(preempt_every=9)) as live:
        ids = live.tokenizer.encode(SENTENCE * 20)[:300]
        began = time.monotonic()
        error = live.complete(ids, status=400)["error"]
        assert time.monotonic() - began < 1
        assert error["code"] == "pool_too_small" and "256" in error["message"] and "300" in error["message"]
        assert live.complete(ids[:50], max_tokens=3)["usage"]["completion_tokens"] == 3
        pushed_back(live)


def pushed_back(live: Live) -> None:
    """D15: log-probabilities neither shift nor double."""
    prompts = [live.tokenizer.encode(f"{i} " + SENTENCE * 3)[:40] for i in range(6)]

    def ask(i: int) -> tuple[str, list[float]]:
        answer = live.complete(prompts[i], max_tokens=40, ignore_eos=True, logprobs=0)
        return text_of(answer), answer["choices"][0]["logprobs"]["token_logprobs"]

    alone = [ask(i) for i in range(6)]
    before = live.stats()["preemptions"]
    assert before > 0
    crowd = together(6, ask)
    assert live.stats()["preemptions"] > before
    for (text, values), (want, wanted) in zip(crowd, alone, strict=True):
        assert text == want and len(values) == 40 and values == pytest.approx(wanted, abs=1e-3)
    live.check_blocks()


@pytest.mark.parametrize("stream", [False, True])
def test_d17_a_prompt_longer_than_the_context(live: Live, stream: bool) -> None:
    ids = live.tokenizer.encode(SENTENCE * 200)[: live.context + 50]
    text = live.tokenizer.text(ids)
    began = time.monotonic()
    error = live.chat(text, status=400, stream=stream)["error"]
    assert time.monotonic() - began < 1
    assert error["code"] == "context_length_exceeded" and error["type"] == "invalid_request_error"
    numbers = [int(number) for number in re.findall(r"\d+", error["message"])]
    assert live.context in numbers and max(numbers) > live.context + 50 - 1
    live.chat(max_tokens=1)


def test_d18_errors_have_the_error_object(live: Live) -> None:
    good = {"model": "default", "messages": [{"role": "user", "content": "x"}]}
    cases: list[tuple[bytes, int, str | None]] = [
        (json.dumps({**good, "temperature": -1}).encode(), 400, "temperature"),
        (json.dumps({**good, "model": "gpt-4"}).encode(), 404, "model"),
        (b'{"model": "default", ', 400, None),
        (b'{"model": "default"}', 400, "messages"),
    ]
    for raw, status, param in cases:
        reply = live.web.post("/v1/chat/completions", content=raw)
        assert reply.status_code == status
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["param"] == param
    client = openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**{**good, "temperature": -1})  # type: ignore[call-overload]
    assert bad.value.param == "temperature" and bad.value.code
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**good, "model": "gpt-4"})  # type: ignore[call-overload]
    assert missing.value.code == "model_not_found" and missing.value.param == "model"


def test_d19_a_lone_surrogate(live: Live) -> None:
    raw = b'{"model":"default","messages":[{"role":"user","content":"hi \\ud800"}],"max_tokens":1}'
    assert live.web.post("/v1/chat/completions", content=raw).status_code == 400
    live.chat(max_tokens=1)


def test_d20_ids_outside_the_vocabulary(live: Live) -> None:
    size = live.tokenizer.vocab_size
    before = text_of(live.complete("The sea is", max_tokens=4))
    for prompt in ([5, size + 7], [-1], [[1], [size]]):
        assert live.complete(prompt, status=400)["error"]["param"] == "prompt"
        live.complete(prompt, status=400, echo=True, logprobs=1, max_tokens=0)
    live.chat(status=400, logit_bias={str(size): 1})
    live.chat(status=400, stop_token_ids=[size])
    assert text_of(live.complete("The sea is", max_tokens=4)) == before


def test_d21_empty_input(live: Live) -> None:
    began = time.monotonic()
    for prompt in ("", [], ["a", ""]):
        live.complete(prompt, status=400)
    live.post("/v1/chat/completions", status=400, messages=[])
    assert time.monotonic() - began < 1
    live.chat("", max_tokens=1)


def test_d22_scores_without_generating(live: Live) -> None:
    answer = live.complete("Your answer: Yes", echo=True, max_tokens=0, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"] == "Your answer: Yes" and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    values = choice["logprobs"]["token_logprobs"]
    assert len(values) == answer["usage"]["prompt_tokens"] and all(value < 0 for value in values[1:])


# ---------------------------------------------------------------- constraints


@pytest.mark.parametrize(
    "schema", [{"type": "objekt"}, 5, {"$ref": "#/missing"}, {"type": "string", "pattern": "(a)\\1"}]
)
def test_d23_d24_a_schema_that_cannot_be_enforced(live: Live, schema: Any) -> None:
    reply = live.web.post(
        "/v1/chat/completions",
        json={
            "model": "default",
            "messages": [{"role": "user", "content": "x"}],
            "response_format": schema_format(schema),
        },
    )
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]
    live.chat(max_tokens=1)


def test_d24_the_keyword_is_named(live: Live) -> None:
    error = live.chat(status=400, response_format=schema_format({"type": "string", "pattern": "(a)\\1"}))["error"]
    assert re.search("pattern|back-?reference", error["message"]) and error["param"].startswith("response_format")


@pytest.mark.parametrize("limit", [64, 400])
def test_d25_a_recursive_schema(live: Live, limit: int) -> None:
    node = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["value", "children"],
        "additionalProperties": False,
    }
    answer = live.chat(
        "A small tree.",
        max_tokens=limit,
        response_format=schema_format({"$ref": "#/$defs/node", "$defs": {"node": node}}),
    )
    if answer["choices"][0]["finish_reason"] == "stop":
        assert set(json.loads(text_of(answer))) == {"value", "children"}
    else:
        assert text_of(answer).startswith('{"value":')


@pytest.mark.parametrize(
    ("schema", "allowed"),
    [
        ({"const": True}, [True]),
        ({"const": None}, [None]),
        ({"const": '"'}, ['"']),
        ({"enum": [1, "1", 1.5, False]}, [1, "1", 1.5, False]),
    ],
)
def test_d26_constants_keep_their_json_type(live: Live, schema: Any, allowed: list[Any]) -> None:
    for seed in range(3):
        value = json.loads(text_of(live.chat(response_format=schema_format(schema), temperature=1.5, seed=seed)))
        assert any(type(value) is type(one) and value == one for one in allowed)


def test_d27_property_names_with_special_characters(live: Live) -> None:
    properties = {"price (USD)": {"type": "integer"}, "a.b*": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    value = json.loads(text_of(live.chat(max_tokens=60, response_format=schema_format(schema))))
    assert list(value) == list(properties)
    assert type(value["price (USD)"]) is int and type(value["a.b*"]) is bool


def test_d28_strings_are_rfc_8259(live: Live) -> None:
    schema = {"type": "object", "properties": {"t": {"type": "string", "maxLength": 12}}, "required": ["t"]}
    schema["additionalProperties"] = False

    def ask(seed: int) -> None:
        answer = live.chat(max_tokens=80, response_format=schema_format(schema), temperature=2, seed=seed)
        json.loads(text_of(answer), strict=True)

    together(8, ask)


def test_d29_an_object_without_properties(live: Live) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    assert json.loads(text_of(live.chat(response_format=schema_format(schema)))) == {}


@pytest.mark.parametrize(("bounds", "low", "high"), [((1, 5), 1, 5), ((-2, 12), -2, 12)])
def test_d30_bounds_of_integers(live: Live, bounds: tuple[int, int], low: int, high: int) -> None:
    schema: dict[str, Any] = {"type": "integer", "maximum": high}
    schema |= {"minimum": low} if low > 0 else {"exclusiveMinimum": low - 1}

    def ask(seed: int) -> str:
        return text_of(live.chat(response_format=schema_format(schema), temperature=1.5, seed=seed))

    for text in together(10, ask):
        assert low <= int(text) <= high and str(int(text)) == text


def test_d31_no_blanks_without_end(live: Live) -> None:
    inner = {"type": "object", "properties": {"b": {"type": "integer", "maximum": 99}}, "required": ["b"]}
    inner["additionalProperties"] = False
    schema = {"type": "object", "properties": {"a": inner}, "required": ["a"], "additionalProperties": False}
    for whitespace in ("compact", "flexible"):

        def ask(seed: int, whitespace: str = whitespace) -> Any:
            return live.chat(
                "JSON please.", max_tokens=100, response_format=schema_format(schema), temperature=1, seed=seed,
                whitespace=whitespace,
            )  # fmt: skip

        for answer in together(4, ask):
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert set(json.loads(text_of(answer))) == {"a"}


def test_d32_classes_of_regexes(live: Live) -> None:
    pattern = r"^\d{3}-\w+$"
    schema = {"type": "object", "properties": {"p": {"type": "string", "pattern": pattern}}, "required": ["p"]}
    schema["additionalProperties"] = False
    answer = live.chat(max_tokens=60, response_format=schema_format(schema))
    if answer["choices"][0]["finish_reason"] == "stop":
        assert re.search(pattern, json.loads(text_of(answer))["p"])
    text = text_of(live.complete("Mail:", regex=r"[\w-]{1,12}@x\.y", max_tokens=60))
    assert re.fullmatch(r"[\w-]+@x\.y", text)


def test_d33_constrained_and_free_rows_in_one_batch(live: Live) -> None:
    def ask(i: int) -> str:
        if i % 2:
            return text_of(live.complete(f"Tell me of the number {i}.", max_tokens=10))
        return text_of(live.force(f"forced text {i}"))

    alone = [ask(i) for i in range(8)]
    assert alone[::2] == [f"forced text {i}" for i in range(0, 8, 2)]
    assert together(8, ask) == alone


def test_d34_alternatives_that_share_first_bytes(live: Live) -> None:
    pattern = r'\["(娃娃领|高领|海军领|斜领|连帽|翻领|一字领)"\]'
    for seed in range(3):
        assert re.fullmatch(pattern, text_of(live.complete("衣领:", regex=pattern, temperature=1.5, seed=seed)))


def test_d35_limits_of_length_are_cheap(live: Live) -> None:
    properties: dict[str, Any] = {f"s{i}": {"type": "string", "maxLength": 60 + 40 * i} for i in range(4)}
    strings = {"type": "array", "maxItems": 15, "items": {"type": "string", "maxLength": 30}}
    properties |= {"a": strings, "b": strings}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}

    def first_token() -> float:
        began = time.monotonic()
        live.chat(max_tokens=1, response_format=schema_format(schema))
        return time.monotonic() - began

    free = live.complete("Meanwhile,", max_tokens=4)
    cold = together(2, lambda i: first_token() if i else live.complete("Meanwhile,", max_tokens=4))
    assert cold[1] < 5 and text_of(cold[0]) == text_of(free)
    assert first_token() < 1 + live.stats()["step_seconds"] * 5


def test_d23_a_good_request_beside_bad_ones(live: Live) -> None:
    want = text_of(live.complete("The river", max_tokens=12))

    def ask(i: int) -> Any:
        if i == 0:
            return live.complete("The river", max_tokens=12)
        return live.chat(status=400, response_format=schema_format({"type": "objekt", "title": str(i)}))

    answers = together(5, ask)
    assert text_of(answers[0]) == want
    assert all("objekt" in answer["error"]["message"] for answer in answers[1:])


# ---------------------------------------------------------------- sampling and streams


def test_d39_a_seed_holds_in_any_company(live: Live) -> None:
    def seeded() -> str:
        return text_of(live.complete("A story:", seed=42, temperature=0.8, max_tokens=12))

    alone = seeded()
    for _ in range(2):
        texts = together(8, lambda i: seeded() if i == 3 else live.complete("A story:", temperature=0.8, max_tokens=12))
        assert texts[3] == alone


def test_d40_every_choice_of_a_stream_ends_once(live: Live) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Name a colour."}], "n": 3, "seed": 5, "max_tokens": 24,
        "temperature": 1.0, "stop": [" "],
    }  # fmt: skip
    whole = live.post("/v1/chat/completions", **fields)
    events = live.events("/v1/chat/completions", **fields)
    for index in range(3):
        choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert reasons == [whole["choices"][index]["finish_reason"]]
        assert chat_text(events, index) == whole["choices"][index]["message"]["content"]


def test_d41_usage_of_a_stream(live: Live) -> None:
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": SENTENCE}], "max_tokens": 5}
    live.post("/v1/chat/completions", **fields, temperature=0)
    whole = live.post("/v1/chat/completions", **fields, temperature=0)
    events = live.events("/v1/chat/completions", **fields, stream_options={"include_usage": True})
    assert events[-1]["choices"] == [] and events[-1]["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in events[:-1])


# ---------------------------------------------------------------- chat and tools


def test_d45_messages_of_every_shape(live: Live) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "user", "content": "Thanks."},
    ]
    assert live.post("/v1/chat/completions", messages=messages, max_tokens=2)["choices"]


def test_d46_the_template_is_the_only_source_of_special_tokens(live: Live, model_dir: Path) -> None:
    from ramet.runtime import store
    from ramet.runtime.frontend.chat import ChatTemplate

    messages = [{"role": "user", "content": "Hi"}]
    template = ChatTemplate(store.open(model_dir).meta, live.tokenizer)
    answer = live.post("/v1/chat/completions", messages=messages, max_tokens=1)
    ids = live.tokenizer.encode(template.render(messages), special=True)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert live.post("/tokenize", messages=messages)["tokens"] == ids


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Wetter für eine Stadt – °C",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"enum": ["C", "F"]},
                "range": {"type": "object", "properties": {"days": {"type": "integer", "maximum": 9, "minimum": 1}},
                          "required": ["days"], "additionalProperties": False},
            },
            "required": ["city", "unit", "range"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_d43_d44_forced_tool_calls(live: Live, choice: Any) -> None:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Weather in Paris?"}], "tools": [WEATHER, NOW], "tool_choice": choice,
        "max_tokens": 300, "parallel_tool_calls": False,
    }  # fmt: skip
    answer = live.post("/v1/chat/completions", **fields, temperature=0)
    (whole,) = answer["choices"]
    assert whole["message"]["content"] is None
    assert whole["finish_reason"] == ("tool_calls" if choice == "required" else "stop")
    (call,) = whole["message"]["tool_calls"]
    value = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert value["unit"] in ("C", "F") and 1 <= value["range"]["days"] <= 9 and len(value["city"]) <= 20
    else:
        assert call["function"]["name"] == "now" and choice == "required"
    events = live.events("/v1/chat/completions", **fields)
    reasons = [one["finish_reason"] for event in events for one in event["choices"] if one["finish_reason"]]
    assert reasons == [whole["finish_reason"]] and not chat_text(events)
    pieces = [call for event in events for one in event["choices"] for call in one["delta"].get("tool_calls") or []]
    assert [piece["function"].get("name") for piece in pieces if "id" in piece] == [call["function"]["name"]]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["function"]["arguments"]


@pytest.mark.slow
def test_d49_a_cold_request_gets_its_turn(live: Live) -> None:
    hot = "Hot. " + SENTENCE * 4
    live.complete(hot, max_tokens=1)
    stop = threading.Event()

    def flow(_: int) -> None:
        while not stop.is_set():
            live.complete(hot, max_tokens=2)

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(flow, i) for i in range(6)]
        time.sleep(0.5)
        began = live.stats()["steps"]
        live.complete(SENTENCE * 10, max_tokens=1, cache_salt=cold())
        steps = live.stats()["steps"] - began
        stop.set()
        for one in running:
            one.result()
    assert steps < 100


def test_plain_http_answers_while_busy(live: Live) -> None:
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(live.complete, "Count:", max_tokens=20, ignore_eos=True) for _ in range(4)]
        for path in ("/health", "/ready", "/v1/models", "/metrics"):
            reply = httpx.get(live.url + path, timeout=5)
            assert reply.status_code == 200, (path, reply.text)
        for job in jobs:
            job.result()
