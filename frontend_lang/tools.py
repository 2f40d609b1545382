"""Python functions as tools: their schema from the signature, their call from the model's arguments."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_type_hints

from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.messages import ConstraintSpec

from .graph import ToolSpec

if TYPE_CHECKING:
    from pydantic import BaseModel

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
ANSWER_OPEN, ANSWER_CLOSE = "<tool_response>\n", "\n</tool_response>"
MAX_CALLS = 16
"""Calls in one turn."""


class ToolError(RametError):
    """A tool raised (``__cause__``), and the program asked for that to be an error."""

    code = "tool_error"


class ToolRoundsExceeded(RametError):
    """The model went on calling tools for more rounds than were allowed."""

    code = "tool_rounds_exceeded"


@dataclass(frozen=True, slots=True)
class Tool:
    """``parameters``: their JSON Schema; ``arguments``: its pydantic model. A tool of a compiled program that was read
    from JSON has neither function nor model."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(repr=False)
    function: Callable[..., Any] | None = None
    arguments: type[BaseModel] | None = field(default=None, repr=False)

    @property
    def schema(self) -> dict[str, Any]:
        """As in the OpenAI API, the inner object: name, description, parameters."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, dict(self.parameters))

    async def call(self, arguments: str) -> Any:
        """Its result for JSON arguments. Plain functions run in a thread. Raises what the function raises."""
        if self.function is None or self.arguments is None:
            raise ToolError(
                f"tool {self.name!r} has no function here: give it as in Compiled.from_json(text, tools=[{self.name}])"
            )
        parsed = self.arguments.model_validate_json(arguments)
        values = {name: getattr(parsed, name) for name in type(parsed).model_fields}
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**values)
        result = await asyncio.to_thread(self.function, **values)
        return await result if isinstance(result, Awaitable) else result


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a `gen` may use tools. ``choice``: auto, required (the first round calls at least one). ``errors``: return
    (the model is told) or raise."""

    tools: tuple[Tool, ...]
    max_rounds: int
    choice: str
    errors: str

    def named(self, name: str) -> Tool:
        return next(tool for tool in self.tools if tool.name == name)

    def call_grammar(self) -> ConstraintSpec:
        """One call as JSON, and the closing tag: nothing else can be generated."""
        calls = []
        definitions: dict[str, Any] = {}
        for index, tool in enumerate(self.tools):
            place = f"tool{index}"
            definitions[place] = _moved(tool.parameters, f"#/$defs/{place}")
            calls.append(
                {
                    "type": "object",
                    "properties": {"name": {"const": tool.name}, "arguments": {"$ref": f"#/$defs/{place}"}},
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
            )
        items = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return ConstraintSpec("json_schema", json.dumps({**items, "$defs": definitions}))


def _moved(schema: Any, root: str) -> Any:
    """A schema whose own references still hold when it stands at ``root``."""
    if isinstance(schema, dict):
        moved = {
            key: value if key in ("const", "enum", "default") else _moved(value, root) for key, value in schema.items()
        }
        reference = moved.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = root + reference[1:]
        return moved
    return [_moved(item, root) for item in schema] if isinstance(schema, list) else schema


def as_tool(function: Callable[..., Any] | Tool) -> Tool:
    """A tool from a function: every parameter needs a type, the docstring is what the model reads. Raises TypeError."""
    if isinstance(function, Tool):
        return function
    if not callable(function):
        raise TypeError(f"a tool is a Python function, got {function!r}")
    from pydantic import ConfigDict, create_model

    name = getattr(function, "__name__", type(function).__name__)
    hints = get_type_hints(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name}(): parameter {parameter} has no name that a model could give")
        if parameter.name not in hints:
            raise TypeError(f"tool {name}(): parameter {parameter.name!r} needs a type, such as {parameter.name}: str")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return Tool(name, inspect.getdoc(function) or "", _parameters(arguments), function, arguments)


def _parameters(model: type[BaseModel]) -> dict[str, Any]:
    document = model.model_json_schema()
    document.pop("title", None)
    for entry in document.get("properties", {}).values():
        entry.pop("title", None)
    return document


def as_tools(functions: Sequence[Callable[..., Any] | Tool]) -> tuple[Tool, ...]:
    tools = tuple(as_tool(function) for function in functions)
    names = [tool.name for tool in tools]
    if not tools or len(set(names)) != len(names):
        raise ValueError(f"tools must be one or more functions with different names, got {names}")
    return tools


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model made, and what came back. ``error``: the exception, where it failed."""

    name: str
    arguments: Mapping[str, Any]
    result: Any = None
    error: Exception | None = None

    def answer(self) -> str:
        """What the model reads."""
        value = {"error": f"{type(self.error).__name__}: {self.error}"} if self.error is not None else self.result
        return value if isinstance(value, str) else _json(value)


async def answer_here(branch: object, use: ToolUse, calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Call the functions, all at once. Raises ToolError where one raises and the program wants that."""
    return await asyncio.gather(*(_answer(use, call) for call in calls))


async def _answer(use: ToolUse, call: ToolCall) -> ToolCall:
    try:
        result = await use.named(call.name).call(json.dumps(call.arguments))
    except Exception as error:
        if use.errors == "raise":
            what = f"tool {call.name}({json.dumps(call.arguments)}) raised {type(error).__name__}: {error}"
            raise ToolError(what) from error
        return ToolCall(call.name, call.arguments, error=error)
    return ToolCall(call.name, call.arguments, result)


def _json(value: Any) -> str:
    from pydantic_core import to_json

    return to_json(value, fallback=str).decode()
