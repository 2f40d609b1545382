"""Tool definitions and calls in plain words, for chat templates that know nothing of tools.

The definitions follow the system text, one JSON object a line; a call is one JSON object between ``<tool_call>`` tags;
a tool's answer is a user message between ``<tool_response>`` tags. Templates with tools of their own never come here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ramet.runtime.protocol.errors import InvalidRequest

CALL_BEGIN, CALL_END = "<tool_call>\n", "\n</tool_call>"
RESPONSE_BEGIN, RESPONSE_END = "<tool_response>\n", "\n</tool_response>"

_INTRODUCTION = "You can call these functions, each given as one line of JSON:"
_INSTRUCTION = (
    "To call a function, answer with its name and arguments as one JSON object:\n"
    f'{CALL_BEGIN}{{"name": "...", "arguments": {{...}}}}{CALL_END}'
)


def tools_text(tools: Sequence[Mapping[str, object]]) -> str:
    """What is appended to the system text."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    return "\n".join([_INTRODUCTION, *lines, _INSTRUCTION])


def call_text(call: Mapping[str, object]) -> str:
    """An assistant's earlier call, as it would have written it."""
    function = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest("a tool call needs function.name and function.arguments.", param="messages")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"arguments of a tool call are not JSON: {error}.", param="messages") from error
    body = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"{CALL_BEGIN}{body}{CALL_END}"


def plain_messages(
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Mapping[str, object]] | None,
    default_system: str,
    *,
    has_system: bool = True,
) -> list[dict[str, object]]:
    """``messages`` with string content, tools and calls turned into text of the three plain roles. ``has_system``: the
    template takes a system message; else the tools go in front of the first message."""
    result: list[dict[str, object]] = []
    for message in messages:
        content = str(message["content"])
        calls = message.get("tool_calls")
        if message["role"] == "tool":
            result.append({"role": "user", "content": f"{RESPONSE_BEGIN}{content}{RESPONSE_END}"})
        elif calls and isinstance(calls, Sequence):
            texts = [content] if content else []
            texts += [call_text(call) for call in calls]
            result.append({"role": message["role"], "content": "\n".join(texts)})
        else:
            result.append(dict(message))
    if tools:
        text = tools_text(tools)
        if result and result[0]["role"] == "system":
            result[0] = {**result[0], "content": f"{result[0]['content']}\n\n{text}".strip()}
        elif has_system or not result:
            result.insert(0, {"role": "system", "content": f"{default_system}\n\n{text}".strip()})
        else:
            result[0] = {**result[0], "content": f"{text}\n\n{result[0]['content']}".strip()}
    return result
