"""Tools: the form of calls is enforced where the model may also answer in text, and calls are read as they stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ramet.runtime import constrain
from ramet.runtime.frontend.http.fields import ChatBody
from ramet.runtime.frontend.http.tool_text import CallArray, calls_of_array, calls_of_text, calls_schema, plan_tools
from ramet.runtime.tokenizer import Tokenizer

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
            "$defs": {"city": {"type": "string", "maxLength": 20}},
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}


def body(**fields: Any) -> ChatBody:
    return ChatBody.model_validate({"model": "default", "messages": [], "tools": [WEATHER, NOW], **fields})


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("No tools are needed.", True),
        ('Let me see. <tool_call>\n{"name": "weather", "arguments": {"city":"Bonn","unit":"C"}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call> Done.', True),
        ('<tool_call>\n{"name": "weather", "arguments": {"city":"Bonn","unit":"K"}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "weather", "arguments": {"unit":"C"}}\n</tool_call>', False),
        ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', False),
        ("<tool_call> nothing", False),
    ],
)
def test_a_call_that_is_begun_is_a_valid_call(tokenizer: Tokenizer, text: str, valid: bool) -> None:
    plan = plan_tools(body())
    assert plan.mode == "auto" and plan.spec is not None
    matcher = constrain.compile(plan.spec, tokenizer).matcher()
    assert (matcher.advance(tokenizer.encode(text)) and matcher.can_end) == valid
    if valid:
        _, calls = calls_of_text(text, frozenset({"weather", "now"}))
        assert len(calls) == text.count("<tool_call>")


def test_required_calls_are_an_array_of_valid_calls(tokenizer: Tokenizer) -> None:
    plan = plan_tools(body(tool_choice="required"))
    assert plan.spec is not None
    compiled = constrain.compile(plan.spec, tokenizer)

    def accepts(text: str) -> bool:
        matcher = compiled.matcher()
        return matcher.advance(tokenizer.encode(text)) and matcher.can_end

    good = '{"name":"weather","arguments":{"city":"Bonn","unit":"C"}}'
    assert accepts(f"[{good}]") and accepts(f'[{good},{{"name":"now","arguments":{{}}}}]')
    assert not accepts("[]") and not accepts('[{"name":"weather","arguments":{}}]')
    alone = plan_tools(body(tool_choice="required", parallel_tool_calls=False)).spec
    assert alone is not None and json.loads(alone.text)["maxItems"] == 1


def test_references_move_with_their_schema() -> None:
    schema = calls_schema(body().tools or [], 2)
    moved = schema["$defs"]["tool0"]
    assert moved["properties"]["city"] == {"$ref": "#/$defs/tool0/$defs/city"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["weather", "now"]), st.dictionaries(st.text(max_size=4), VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)


@given(CALLS, st.lists(st.integers(0, 200), max_size=8), st.booleans())
def test_calls_are_read_the_same_however_the_text_is_split(
    calls: list[tuple[str, Any]], cuts: list[int], plain: bool
) -> None:
    written = [{"name": name, "arguments": arguments} for name, arguments in calls]
    text = json.dumps(written, ensure_ascii=plain, separators=None if plain else (",", ":"))
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    reader = CallArray()
    pieces = [piece for i in range(len(edges) - 1) for piece in reader.feed(text[edges[i] : edges[i + 1]])]
    assert [piece.name for piece in pieces if piece.name] == [name for name, _ in calls]
    joined = ["".join(piece.arguments for piece in pieces if piece.index == i) for i in range(len(calls))]
    assert [json.loads(one) for one in joined] == [arguments for _, arguments in calls]
    assert joined == [call.arguments for call in calls_of_array(text)]


def test_a_cut_call_keeps_what_there_is() -> None:
    (call,) = calls_of_array('[{"name":"weather","arguments":{"city":"Bo')
    assert (call.name, call.arguments) == ("weather", '{"city":"Bo')
    assert calls_of_array('[{"name":"wea') == []
