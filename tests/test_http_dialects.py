"""What users of vLLM, SGLang, TGI and llama.cpp send to their servers, over HTTP to the real model."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from live import Live
from ramet.runtime.frontend.http.lower import truncated

SCHEMA = {"type": "object", "properties": {"z": {"type": "boolean"}}, "required": ["z"], "additionalProperties": False}

FORMATS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, r'\{"z":(true|false)\}'),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, r'\{"z":(true|false)\}'),
    ({"response_format": {"type": "json", "value": SCHEMA}}, r'\{"z":(true|false)\}'),
    ({"response_format": {"type": "json_schema", "value": {"name": "z", "schema": SCHEMA}}}, r'\{"z":(true|false)\}'),
    ({"response_format": {"type": "regex", "value": "[ab]{4}"}}, "[ab]{4}"),
    ({"json_schema": SCHEMA}, r'\{"z":(true|false)\}'),
    ({"json_schema": json.dumps(SCHEMA)}, r'\{"z":(true|false)\}'),
    ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
    ({"guided_grammar": 'start: "yes" | "no"'}, "yes|no"),
    ({"guided_regex": "[ab]{4}", "guided_decoding_backend": "xgrammar"}, "[ab]{4}"),
    ({"structured_outputs": {"choice": ["red", "blue"]}}, "red|blue"),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, r'\{"z":(true|false)\}'),
]


@pytest.mark.parametrize("fields", FORMATS, ids=lambda one: next(iter(one[0])) if isinstance(one, tuple) else "")
def test_a_format_in_any_dialect_is_enforced(live: Live, fields: tuple[dict[str, Any], str]) -> None:
    asked, pattern = fields
    answer = live.chat("Say something.", max_tokens=20, **asked)["choices"][0]
    assert re.fullmatch(pattern, answer["message"]["content"]), answer


def test_tagged_values_in_free_text(live: Live) -> None:
    """With a bias towards the opening, the model writes it; then a value and its end must follow."""
    (opening,) = live.tokenizer.encode("<<")
    form = {"type": "structural_tag", "structures": [{"begin": "<<", "schema": SCHEMA, "end": ">>"}], "triggers": []}
    answer = live.chat("Write:", max_tokens=24, logit_bias={str(opening): 100}, response_format=form)
    assert re.match(r'<<\{"z":(true|false)\}>>', answer["choices"][0]["message"]["content"])
    native = live.web.post(
        "/generate",
        json={"text": "Write:", "sampling_params": {"max_new_tokens": 2, "structural_tag": json.dumps(form)}},
    )
    assert native.status_code == 200


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "structural_tag", "format": {}}}, "response_format.format"),
    ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " *"}}, "whitespace_pattern"),
    ({"json_schema": SCHEMA, "regex": "a"}, "json_schema"),
    ({"allowed_token_ids": [1, 2]}, "allowed_token_ids"),
    ({"bad_words": ["x"]}, "bad_words"),
    ({"mirostat": 2}, "mirostat"),
    ({"xtc_probability": 0.5}, "xtc_probability"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"echo": True}, "echo"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda one: one if isinstance(one, str) else "")
def test_what_is_not_there_is_refused_by_name(live: Live, fields: dict[str, Any], param: str) -> None:
    error = live.chat(status=400, **fields)["error"]
    assert error["param"] == param and error["message"]


def test_fields_that_ask_for_nothing_are_taken(live: Live) -> None:
    plain = live.chat()["choices"][0]["message"]
    neutral = {"mirostat": 0, "xtc_probability": 0.0, "typical_p": 1.0, "top_n_sigma": -1, "best_of": 1, "top_k": 0}
    assert live.chat(**neutral, user="me", cache_prompt=True)["choices"][0]["message"] == plain
    assert live.chat(repeat_penalty=1.5)["choices"] == live.chat(repetition_penalty=1.5)["choices"]
    assert live.chat(max_tokens=None, n_predict=3)["usage"]["completion_tokens"] == 3
    assert live.complete("Count:", max_tokens=None, n_predict=3, ignore_eos=True)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_a_stop_is_shown_on_request(live: Live, path: str) -> None:
    def answer(**fields: Any) -> dict[str, Any]:
        if path == "chat":
            choice = live.chat("Write:", regex="abcdefgh", logprobs=True, **fields)["choices"][0]
            return {**choice, "text": choice["message"]["content"], "n": len(choice["logprobs"]["content"])}
        choice = live.force("abcdefgh", logprobs=0, **fields)["choices"][0]
        return {**choice, "n": len(choice["logprobs"]["tokens"])}

    without, shown = answer(stop="def"), answer(stop="def", include_stop_str_in_output=True)
    assert without["text"] == "abc" and shown["text"] == "abcdef"
    assert shown["finish_reason"] == "stop" and shown["n"] >= without["n"]


def test_a_stop_token_is_shown_on_request(live: Live) -> None:
    text = live.complete("The colours of the rainbow are", max_tokens=6)["choices"][0]["text"]
    token = live.tokenizer.encode(text)[3]
    spelled = live.tokenizer.text([token])
    cut = live.complete("The colours of the rainbow are", stop_token_ids=[token])["choices"][0]["text"]
    fields = {"stop_token_ids": [token], "include_stop_str_in_output": True}
    assert live.complete("The colours of the rainbow are", **fields)["choices"][0]["text"] == cut + spelled
    events = live.events("/v1/completions", prompt="The colours of the rainbow are", **fields)
    assert "".join(one["choices"][0]["text"] for one in events) == cut + spelled


def test_stop_is_streamed_on_request(live: Live) -> None:
    fields = {"prompt": "Write:", "regex": "abcdefghabc", "stop": ["fgh", "xyz"], "include_stop_str_in_output": True}
    events = live.events("/v1/completions", **fields)
    assert "".join(one["choices"][0]["text"] for one in events) == "abcdefgh"
    native = {"sampling_params": {"regex": "abcdefghabc", "stop": "fgh", "no_stop_trim": True, "max_new_tokens": 20}}
    assert live.web.post("/generate", json={"text": "Write:", **native}).json()["text"] == "abcdefgh"


def test_prompt_logprobs_are_those_of_an_echo(live: Live) -> None:
    prompt = "Your answer: Yes, of course"
    choice = live.complete(prompt, max_tokens=1, prompt_logprobs=2, return_token_ids=True)["choices"][0]
    echo = live.complete(prompt, max_tokens=0, echo=True, logprobs=2)["choices"][0]["logprobs"]
    ids = live.tokenizer.encode(prompt)
    assert choice["prompt_token_ids"] == ids and len(choice["token_ids"]) == 1
    assert choice["prompt_logprobs"][0] is None and len(choice["prompt_logprobs"]) == len(ids)
    for token, entry, value in zip(ids[1:], choice["prompt_logprobs"][1:], echo["token_logprobs"][1:], strict=True):
        assert entry[str(token)]["logprob"] == value
        assert entry[str(token)]["decoded_token"] == live.tokenizer.text([token])
        assert sorted(one["rank"] for one in entry.values() if one["rank"]) == [1, 2]
    chat = live.chat(prompt_logprobs=0, return_token_ids=True, logprobs=True, max_tokens=3)
    assert len(chat["prompt_logprobs"]) == len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    assert all(not entry["top_logprobs"] for entry in chat["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_ids_in_a_stream_are_those_of_the_whole_answer(live: Live, path: str) -> None:
    prompt: dict[str, Any] = {"prompt": ["Hi,", "Oh"], "logprobs": 0}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
    fields = {**prompt, "n": 2, "seed": 5, "temperature": 1.0, "max_tokens": 9, "return_token_ids": True}
    whole = live.post(path, **fields)
    events = live.events(path, **fields, stop=["zzz"])
    prompts = [event.get("prompt_token_ids") or event["choices"][0].get("prompt_token_ids") for event in events]
    firsts = [one for one in prompts if one]
    for index, choice in enumerate(whole["choices"]):
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert [token for one in mine for token in one.get("token_ids", [])] == choice["token_ids"]
    if "chat" in path:
        assert whole["prompt_token_ids"] in firsts
    else:
        assert [choice["prompt_token_ids"] for choice in whole["choices"]] == sorted(
            firsts, key=[choice["prompt_token_ids"] for choice in whole["choices"]].index
        )


def test_tokens_as_ids(live: Live) -> None:
    fields: dict[str, Any] = {"return_tokens_as_token_ids": True, "return_token_ids": True, "max_tokens": 4}
    choice = live.complete("Hello", logprobs=2, **fields)["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    content = live.chat(logprobs=True, **fields)["choices"][0]["logprobs"]["content"]
    assert all(re.fullmatch(r"token_id:\d+", entry["token"]) for entry in content)


def test_usage_of_every_chunk(live: Live) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    messages = [{"role": "user", "content": "Count to ten."}]
    for path, prompt in (("/v1/chat/completions", {"messages": messages}), ("/v1/completions", {"prompt": "One,"})):
        events = live.events(path, **prompt, max_tokens=8, stream_options=options)
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts) and counts[-1] == counts[-2] == 8
        assert len({event["usage"]["prompt_tokens"] for event in events}) == 1


def test_a_prompt_is_cut_to_its_last_tokens(live: Live) -> None:
    long, ids = "one two three four five six", live.tokenizer.encode("one two three four five six")
    cut = live.complete(long, truncate_prompt_tokens=3, return_token_ids=True)
    assert cut["usage"]["prompt_tokens"] == 3 and cut["choices"][0]["prompt_token_ids"] == ids[-3:]
    assert truncated([1, 2, 3, 4], -1, 3) == [3, 4] and truncated([1, 2], -1, 9) == [1, 2]


def test_tokenize_in_each_dialect(live: Live) -> None:
    text = "Hello 歪!"
    ids = live.tokenizer.encode(text)
    vllm = live.post("/tokenize", prompt=text, return_token_strs=True)
    assert vllm["tokens"] == ids and vllm["count"] == len(ids) == len(vllm["token_strs"])
    pieces = live.post("/tokenize", content=text, with_pieces=True)["tokens"]
    assert [one["id"] for one in pieces] == ids
    spelled = [one["piece"].encode() if isinstance(one["piece"], str) else bytes(one["piece"]) for one in pieces]
    assert b"".join(spelled).decode() == text
    assert live.post("/detokenize", tokens=ids)["content"] == text
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}
    count = live.post("/tokenize", **fields)["count"]
    assert count == live.post("/v1/chat/completions", **fields, max_tokens=1)["usage"]["prompt_tokens"]


def test_paths_of_other_servers(live: Live) -> None:
    client = openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError) as error:
        client.embeddings.create(model="default", input="a")
    assert error.value.code == "unsupported_endpoint" and "embedding" in error.value.message
    assert live.web.get("/ping").status_code == 200
    assert live.web.get("/version").json()["version"]
    assert live.web.get("/load").json() == {"server_load": 0}
    assert live.web.get("/", follow_redirects=False).headers["location"] == "/dashboard"
    assert live.web.post("/reset_prefix_cache").status_code == 200


def test_counters_of_latency(live: Live) -> None:
    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", live.web.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    names = ["ramet_time_to_first_token_seconds_count", "ramet_time_per_output_token_seconds_count"]
    names += ["ramet_request_seconds_count", "ramet_request_output_tokens_sum", 'ramet_choices_total{reason="length"}']
    before = [value(name) for name in names]
    live.chat(max_tokens=5, ignore_eos=True, n=2)
    assert [value(name) - old for name, old in zip(names, before, strict=True)] == [1, 1, 1, 10, 2]


def test_a_character_that_no_token_spells_is_named(live: Live) -> None:
    """It would be left out, and the answer be one to another prompt."""
    for path, fields, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a \x04 b"}]}, "messages"),
        ("/v1/completions", {"prompt": ["fine", "a \x1d b"]}, "prompt"),
        ("/tokenize", {"prompt": "a \x04 b"}, None),
    ):
        error = live.post(path, 400, **fields)["error"]
        assert error["code"] == "character_not_in_vocabulary" and re.search(r"U\+00(04|1D)", error["message"])
        assert param is None or error["param"] == param


# ---------------------------------------------------------------- TGI


def tgi(live: Live, path: str = "/generate", status: int = 200, **parameters: Any) -> Any:
    reply = live.web.post(path, json={"inputs": "The colours are", "parameters": {"max_new_tokens": 8, **parameters}})
    assert reply.status_code == status, reply.text
    return reply.json()


def test_generate_in_tgis_shape(live: Live) -> None:
    plain = live.complete("The colours are", max_tokens=8, return_token_ids=True)["choices"][0]
    assert tgi(live) == {"generated_text": plain["text"]}  # greedy unless something says otherwise
    assert tgi(live, "/") == [{"generated_text": plain["text"]}]
    whole = tgi(live, details=True, decoder_input_details=True, top_n_tokens=2, return_full_text=True)
    assert whole["generated_text"] == "The colours are" + plain["text"]
    details = whole["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 8)
    assert [one["id"] for one in details["tokens"]] == plain["token_ids"]
    assert [len(one) for one in details["top_tokens"]] == [2] * 8
    assert [one["logprob"] is None for one in details["prefill"]] == [True, False, False]
    assert tgi(live, do_sample=True, seed=3, temperature=1.5) == tgi(live, do_sample=True, seed=3, temperature=1.5)


def test_grammars_and_stops_in_tgis_shape(live: Live) -> None:
    value = tgi(live, grammar={"type": "json", "value": SCHEMA}, max_new_tokens=20)["generated_text"]
    assert set(json.loads(value)) == {"z"}
    text = tgi(live, grammar={"type": "regex", "value": "abcdefgh"}, stop=["def"], details=True)
    assert text["generated_text"] == "abcdef" and text["details"]["finish_reason"] == "stop_sequence"
    assert tgi(live, status=400, grammar={"type": "regex"})["error"]["param"] == "parameters.grammar"
    assert tgi(live, status=400, typical_p=0.5)["error"]["param"] == "typical_p"
    assert live.web.get("/info").json()["max_total_tokens"] == live.context


@pytest.mark.parametrize("stop", [[], ["zzz"]])
def test_a_stream_in_tgis_shape(live: Live, stop: list[str]) -> None:
    fields = {"inputs": "Write: 歪🙂", "parameters": {"max_new_tokens": 12, "stop": stop}}
    whole = live.web.post("/generate", json=fields).json()["generated_text"]
    with live.web.stream("POST", "/generate_stream", json=fields) as reply:
        events = [json.loads(line[6:]) for line in reply.iter_lines() if line]
    assert "".join(event["token"]["text"] for event in events) == whole == events[-1]["generated_text"]
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["details"]["generated_tokens"] == 12
    assert all(event["generated_text"] is None for event in events[:-1])


# ---------------------------------------------------------------- llama.cpp


def completion(live: Live, status: int = 200, **fields: Any) -> Any:
    body = {"prompt": "The colours are", "n_predict": 8, "temperature": 0, **fields}
    reply = live.web.post("/completion", json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def test_completion_in_llama_cpps_shape(live: Live) -> None:
    plain = live.complete("The colours are", max_tokens=8, return_token_ids=True)["choices"][0]
    answer = completion(live, n_probs=2, return_tokens=True)
    assert answer["content"] == plain["text"] and answer["tokens"] == plain["token_ids"]
    assert (answer["stop"], answer["stop_type"], answer["tokens_predicted"]) == (True, "limit", 8)
    assert [one["id"] for one in answer["completion_probabilities"]] == plain["token_ids"]
    assert all(len(one["top_logprobs"]) == 2 for one in answer["completion_probabilities"])
    assert answer["timings"]["predicted_ms"] > 0 and answer["timings"]["prompt_ms"] > 0
    settings = completion(live, temperature=None)["generation_settings"]
    assert (settings["temperature"], settings["top_k"], settings["min_p"]) == (0.8, 40, 0.05)


def test_constraints_biases_and_stops_in_llama_cpps_shape(live: Live) -> None:
    assert set(json.loads(completion(live, json_schema=SCHEMA, n_predict=20)["content"])) == {"z"}
    ended = completion(live, grammar='root ::= "abcdefgh"', stop=["def"], n_predict=20)
    assert (ended["content"], ended["stop_type"], ended["stopping_word"]) == ("abc", "word", "def")
    assert completion(live, grammar='root ::= "a" | "b"', logit_bias=[["b", 50]])["content"] == "b"
    assert completion(live, grammar='root ::= "a" | "b"', logit_bias=[["b", 50], ["b", False]])["content"] == "a"
    for bias in ([3], 5, True, "x", [[None, 1]], [[[1], 1]], [["b", "c"]]):
        assert completion(live, status=400, logit_bias=bias)["error"]["param"] == "logit_bias"
    assert completion(live, logit_bias=[["²", 1]])["tokens_predicted"] == 8
    assert completion(live, status=400, n=2)["error"]["param"] == "n"
    assert completion(live, status=400, mirostat=1)["error"]["param"] == "mirostat"


def test_a_stream_in_llama_cpps_shape(live: Live) -> None:
    whole = completion(live, stop=["zzz"])
    body = {"prompt": "The colours are", "n_predict": 8, "temperature": 0, "stop": ["zzz"], "stream": True}
    with live.web.stream("POST", "/completion", json=body) as reply:
        events = [json.loads(line[6:]) for line in reply.iter_lines() if line]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["tokens_predicted"] == 8


def test_what_llama_cpps_clients_ask_for_beside(live: Live) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = live.web.post("/apply-template", json={"messages": messages}).json()["prompt"]
    ids = live.post("/tokenize", content=text, special=True)["tokens"]
    assert ids == live.post("/tokenize", messages=messages)["tokens"]
    assert live.web.get("/props").json()["default_generation_settings"]["n_ctx"] == live.context


def test_the_tree_shows_what_was_asked_with_the_same_salt(live: Live) -> None:
    live.complete("The one text that nobody else may see, long enough for blocks.", max_tokens=8, cache_salt="hidden")
    live.complete("A text for all, which is long enough for several blocks.", max_tokens=8)

    def shown(**params: str) -> str:
        return live.web.get("/tree", params=params).text

    assert "nobody else" in shown(cache_salt="hidden") and "for all" not in shown(cache_salt="hidden")
    assert "for all" in shown()
    assert "hidden" not in shown() and "nobody else" not in shown()


# ---------------------------------------------------------------- SGLang


def test_requests_are_aborted_by_their_whole_name(live: Live) -> None:
    params = {"max_new_tokens": 1500, "ignore_eos": True}
    with ThreadPoolExecutor() as pool:
        sent = {
            rid: pool.submit(live.web.post, "/generate", json={"text": "Count:", "rid": rid, "sampling_params": params})
            for rid in ("req-1", "req-10")
        }
        until = time.monotonic() + 20
        while live.stats()["requests"]["running"] < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert live.post("/abort_request", rid="req-1") == {"status": "ok"}
        assert sent["req-1"].result(20).json()["error"]["code"] == "cancelled"
        assert not sent["req-10"].done()
        live.post("/abort_request", abort_all=True)
        assert sent["req-10"].result(20).status_code == 503
    live.check_blocks()
