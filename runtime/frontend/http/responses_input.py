"""The body of POST /v1/responses, and the conversation that it asks for."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .errors import HttpError, bad_request
from .fields import Body, ChatBody, Part, StreamOptions, validated

_TEXTS = ("input_text", "output_text", "text")


class TextFormat(Part):
    type: str
    name: str = ""
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextSettings(Part):
    format: TextFormat | None = None


class ResponseTool(Part):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolName(Part):
    type: Literal["function"]
    name: str


class ResponsesBody(Body):
    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextSettings | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolName | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    truncation: str | None = None
    seed: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    timeout_s: float | None = None
    stop: str | list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    separate_reasoning: bool | None = None
    regex: str | None = None

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities of the text are wanted."""
        return "message.output_text.logprobs" in (self.include or ())


_SAME = (
    "model",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "stream",
    "seed",
    "cache_salt",
    "priority",
    "timeout_s",
    "stop",
    "chat_template_kwargs",
    "separate_reasoning",
    "regex",
)


def conversation(body: ResponsesBody) -> ChatBody:
    """The chat request that asks for the same. Raises HttpError for what needs a memory, and for unknown items."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, name):
            raise _stateless(name)
    if body.background:
        raise bad_request("background responses need a memory of answers, which this server has not", "background")
    fields: dict[str, Any] = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    fields["messages"] = _messages(body)
    if body.max_output_tokens is not None:
        fields["max_completion_tokens"] = body.max_output_tokens
    if body.logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.text is not None and body.text.format is not None:
        fields["response_format"] = _format(body.text.format)
    if body.tools:
        fields["tools"] = [_tool(tool, f"tools.{index}") for index, tool in enumerate(body.tools)]
    if isinstance(body.tool_choice, ToolName):
        fields["tool_choice"] = {"type": "function", "function": {"name": body.tool_choice.name}}
    elif body.tool_choice is not None:
        fields["tool_choice"] = body.tool_choice
    return validated(ChatBody, fields)


def _stateless(name: str) -> HttpError:
    return bad_request(
        f"{name} needs a memory of conversations, which this server has not: send all items in input (what they share "
        "with earlier requests is cached)",
        name,
        "unsupported_parameter",
    )


def _format(form: TextFormat) -> dict[str, Any]:
    if form.type != "json_schema":
        return {"type": form.type}
    return {"type": "json_schema", "json_schema": {"name": form.name, "schema": form.schema_, "strict": form.strict}}


def _tool(tool: ResponseTool, place: str) -> dict[str, Any]:
    if tool.type != "function":
        raise bad_request(f"{place}: tools of type {tool.type!r} are not run here; only functions are", place)
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": {**given, "strict": tool.strict}}


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for index, item in enumerate(body.input):
        place, kind = f"input.{index}", item.get("type", "message")
        if kind == "message" and isinstance(item.get("role"), str):
            messages.append({"role": item["role"], "content": _text(item.get("content"), f"{place}.content")})
        elif kind == "function_call" and isinstance(item.get("name"), str):
            call = {"name": item["name"], "arguments": item.get("arguments", "{}")}
            made = {"id": item.get("call_id"), "type": "function", "function": call}
            if messages and messages[-1]["role"] == "assistant" and messages[-1].get("tool_calls"):
                messages[-1]["tool_calls"].append(made)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        elif kind == "function_call_output":
            content = _text(item.get("output"), f"{place}.output")
            messages.append({"role": "tool", "content": content, "tool_call_id": item.get("call_id")})
        elif kind != "reasoning":  # what was thought before is not shown again
            raise bad_request(
                f"{place} is of type {kind!r}; possible are message (with a role), function_call (with a name), "
                "function_call_output and reasoning",
                place,
            )
    return messages


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else [None]
    if not all(isinstance(part, dict) and part.get("type") in _TEXTS and "text" in part for part in parts):
        raise bad_request(f"{place} must be text, or a list of parts of type input_text or output_text", place)
    return "".join(str(part["text"]) for part in parts)
