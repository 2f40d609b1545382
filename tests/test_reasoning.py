"""Thoughts told apart from answers, however the text is cut, and over HTTP."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live import Live
from ramet.runtime.frontend.http.reasoning import BEGIN, END, Thought, opened, split, thought_tokens

WHOLE = [
    ("<think>\nplan\n</think>\n\nanswer", False, "plan", "answer"),
    ("<think>plan</think>answer </think> x", False, "plan", "answer </think> x"),
    ("plan </thi nk> more\n</think>\n\nanswer", True, "plan </thi nk> more", "answer"),
    ("<think>\n\n</think>\n\nanswer", False, "", "answer"),
    ("<think>\nnever ended </th", False, "never ended </th", ""),
    ("<think>only</think>\n", False, "only", ""),
    ("an answer with <think> inside </think>", False, "", "an answer with <think> inside </think>"),
    ("  <thin air", False, "", "  <thin air"),
    ("<thi", False, "", "<thi"),
    ("", True, "", ""),
]


@pytest.mark.parametrize(("text", "inside", "thought", "said"), WHOLE)
def test_a_whole_text(text: str, inside: bool, thought: str, said: str) -> None:
    assert split(text, inside) == (thought, said)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), inside=st.booleans())
def test_a_stream_gives_the_same(data: st.DataObject, inside: bool) -> None:
    parts = st.lists(st.sampled_from([BEGIN, END, "<", "</", "think>", " ", "\n", "a", "b c", "é"]), max_size=8)
    text = "".join(data.draw(parts))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    places = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    thought = Thought(inside)
    got = [thought.feed(piece, last=index == len(pieces) - 1) for index, piece in enumerate(pieces)]
    assert ("".join(one for one, _ in got), "".join(one for _, one in got)) == split(text, inside)


def test_tokens_of_thoughts() -> None:
    table = [b"", b"<think>", b"a", b"</th", b"ink>", b"b"]
    assert thought_tokens(table, [1, 2, 3, 4, 5, 5], False) == 4
    assert thought_tokens(table, [2, 3, 4, 5], True) == 3 and thought_tokens(table, [2, 3, 4, 5], False) == 0
    assert thought_tokens(table, [1, 2, 2], False) == 3 and thought_tokens(table, [5, 5], False) == 0
    assert opened(table, [5, 1]) and not opened(table, [1, 5])


def chat(live: Live, stream: bool, messages: list[dict[str, Any]], **fields: Any) -> tuple[str | None, str, int]:
    """(thought, said, tokens thought)."""
    body = {"messages": messages, "max_tokens": 60, "temperature": 0, **fields}
    if not stream:
        whole = live.post("/v1/chat/completions", **body)
        message = whole["choices"][0]["message"]
        return message.get("reasoning_content"), message["content"], reasoned(whole["usage"])
    events = live.events("/v1/chat/completions", **body, stream_options={"include_usage": True})
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    thoughts = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
    said = "".join(delta.get("content") or "" for delta in deltas)
    return "".join(thoughts) or None, said, reasoned(events[-1]["usage"])


def reasoned(usage: dict[str, Any]) -> int:
    count: int = usage["completion_tokens_details"]["reasoning_tokens"]
    return count


USER = [{"role": "user", "content": "Hi"}]
THOUGHT = r"<think>\nab[a-c]{4,9}\n</think>\n\nso [a-c]{3}"


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_over_http(live: Live, stream: bool) -> None:
    raw = chat(live, stream, USER, regex=THOUGHT)
    assert raw[0] is None and raw[1].startswith("<think>") and raw[2] == 0
    thought, said, count = chat(live, stream, USER, regex=THOUGHT, separate_reasoning=True)
    assert thought and f"<think>\n{thought}\n</think>\n\n{said}" == raw[1] and said.startswith("so ")
    assert 0 < count < 60
    hidden = chat(live, stream, USER, regex=THOUGHT, separate_reasoning=True, include_reasoning=False)
    assert hidden == (None, said, count)


@pytest.mark.parametrize("stream", [False, True])
def test_a_thought_that_the_prompt_opens(live: Live, stream: bool) -> None:
    messages = [*USER, {"role": "assistant", "content": "<think>"}]
    fields = {"continue_final_message": True, "max_tokens": 12, "ignore_eos": True}
    raw = chat(live, stream, messages, **fields)[1]
    thought, said, count = chat(live, stream, messages, **fields, separate_reasoning=True)
    assert (thought, said or "", count) == (raw.strip(), "", 12)
    held = chat(live, stream, messages, **fields, separate_reasoning=True, regex="[ab]{3}")
    assert held[0] is None and len(held[1]) == 3  # what is constrained is the answer


@pytest.mark.parametrize("stream", [False, True])
def test_calls_behind_a_thought(live: Live, stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    form = re.escape('<think>ab</think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    body = {"messages": USER, "tools": [tool], "regex": form, "separate_reasoning": True, "max_tokens": 60}
    if stream:
        deltas = [event["choices"][0]["delta"] for event in live.events("/v1/chat/completions", **body)]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "ab"
        assert [call["function"]["name"] for delta in deltas for call in delta.get("tool_calls", [])] == ["f"]
        return
    choice = live.post("/v1/chat/completions", **body)["choices"][0]
    assert choice["message"]["reasoning_content"] == "ab" and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
