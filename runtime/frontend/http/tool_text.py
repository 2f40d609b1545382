"""Tool calls: which constraint makes them, and how they are read from the text, also while it grows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from ramet.runtime.frontend.schema_parts import with_parts
from ramet.runtime.frontend.tools import CALL_BEGIN, CALL_END
from ramet.runtime.protocol.messages import ConstraintSpec

from .errors import bad_request
from .fields import ChatBody, NamedTool, Tool
from .server import new_id

MAX_CALLS = 16
OPEN_TAG, CLOSE_TAG = CALL_BEGIN.strip(), CALL_END.strip()
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolPlan:
    """How tools take part. ``mode``: none; auto (text, or calls between tags in it); required (the text is a JSON array
    of calls); named (the text is the arguments of ``name``). ``must``: one of the tools is strict."""

    mode: str
    tools: tuple[dict[str, Any], ...] = ()
    """As the template wants them."""
    name: str = ""
    spec: ConstraintSpec | None = None
    must: bool = True


def plan_tools(body: ChatBody) -> ToolPlan:
    """Raises HttpError for a choice that does not fit the tools."""
    choice, tools = body.tool_choice, body.tools or []
    if not tools:
        if choice not in (None, "none", "auto"):
            raise bad_request("tool_choice needs tools", "tool_choice")
        return ToolPlan("none")
    for index, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.function.name):
            raise bad_request(
                f"{tool.function.name!r} is no function name: 1 to 64 letters, digits, _ and - are allowed",
                f"tools.{index}.function.name",
            )
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad_request("two tools have the same name", "tools")
    if choice == "none":
        return ToolPlan("none")
    shown = tuple(tool.model_dump(exclude_none=True) for tool in tools)
    if isinstance(choice, NamedTool):
        wanted = choice.function.name
        if wanted not in names:
            raise bad_request(f"tool_choice names {wanted!r}; the tools are {', '.join(names)}", "tool_choice")
        tool = tools[names.index(wanted)]
        return ToolPlan("named", shown, wanted, ConstraintSpec("json_schema", json.dumps(_parameters(tool))))
    if choice == "required":
        most = 1 if body.parallel_tool_calls is False else MAX_CALLS
        return ToolPlan("required", shown, spec=ConstraintSpec("json_schema", json.dumps(calls_schema(tools, most))))
    return ToolPlan("auto", shown, spec=_tagged(tools, body), must=any(tool.function.strict for tool in tools))


def _tagged(tools: Sequence[Tool], body: ChatBody) -> ConstraintSpec:
    """Free text, in which a call that is begun is a whole and valid call of one of the tools."""
    tags = [
        {
            "begin": f'{CALL_BEGIN}{{"name": {json.dumps(tool.function.name)}, "arguments": ',
            "end": "}" + CALL_END,
            "schema": _parameters(tool),
        }
        for tool in tools
    ]
    structure = {"tags": tags, "triggers": [OPEN_TAG], "one": body.parallel_tool_calls is False}
    return ConstraintSpec("structural", json.dumps(structure))


def _parameters(tool: Tool) -> dict[str, Any]:
    schema = tool.function.parameters
    if not schema:
        return _NO_PARAMETERS
    if schema.get("type", "object") != "object":
        raise bad_request(f"the parameters of {tool.function.name} must be an object", "tools")
    return {**schema, "type": "object"}


def calls_schema(tools: Sequence[Tool], most: int) -> dict[str, Any]:
    """An array of 1 to ``most`` calls. Each tool's parameters move under ``$defs``, with their own references."""
    calls, definitions = [], {}
    for index, tool in enumerate(tools):
        place = f"tool{index}"
        definitions[place] = _moved(_parameters(tool), f"#/$defs/{place}")
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    "arguments": {"$ref": f"#/$defs/{place}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"type": "array", "minItems": 1, "maxItems": most, "items": items, "$defs": definitions}


def _moved(schema: object, root: str) -> Any:
    """The schema, for a place from which its own root is ``root``."""
    if not isinstance(schema, dict):
        return schema
    moved = with_parts(schema, lambda part: _moved(part, root))
    ref = moved.get("$ref")
    return {**moved, "$ref": root + ref[1:]} if isinstance(ref, str) and ref.startswith("#") else moved


# ---------------------------------------------------------------- reading calls


@dataclass(frozen=True)
class CallPiece:
    """News of call ``index``: its beginning (``name`` set), then pieces of its arguments."""

    index: int
    name: str
    arguments: str


class CallArray:
    """Reads ``[{"name":"f","arguments":{...}},...]`` piece by piece; ``arguments`` are handed on as they stand."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._head = ""
        self._index = -1
        self._inside = False

    def feed(self, text: str) -> list[CallPiece]:
        pieces: list[CallPiece] = []
        run = 0
        for position, char in enumerate(text):
            begins = self._step(char)
            if self._inside:
                if begins:
                    name = json.loads(self._head[: self._head.rindex(",")] + "}")["name"]
                    self._index += 1
                    pieces.append(CallPiece(self._index, name, ""))
                    run = position
                elif self._depth == 2 and not self._in_string and char in "}]":
                    pieces.append(CallPiece(self._index, "", text[run : position + 1]))
                    self._inside = False
                    self._head = ""
        if self._inside and run < len(text):
            pieces.append(CallPiece(self._index, "", text[run:]))
        return pieces

    def _step(self, char: str) -> bool:
        """True where the arguments of a call begin."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
            if not self._inside:
                self._head += char
            return False
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
            if self._depth == 3 and not self._inside:
                self._inside = True
                return True
        elif char in "}]":
            self._depth -= 1
        if not self._inside and (self._depth == 2 or self._head):
            self._head = char if char == "{" else self._head + char
        return False


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str

    def json(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def call_id() -> str:
    return new_id("call_")


def calls_of_array(text: str) -> list[Call]:
    """Calls of a whole or cut array; of a cut one, the arguments as far as they go."""
    calls: list[Call] = []
    for piece in CallArray().feed(text):
        if piece.name:
            calls.append(Call(call_id(), piece.name, ""))
        else:
            last = calls[-1]
            calls[-1] = Call(last.id, last.name, last.arguments + piece.arguments)
    return calls


def calls_of_text(text: str, names: frozenset[str]) -> tuple[str, list[Call]]:
    """(content, calls) of free text: what stands between call tags and is a call of a known tool. Anything else stays
    content."""
    content, calls, rest = "", [], text
    while OPEN_TAG in rest:
        before, _, after = rest.partition(OPEN_TAG)
        inner, found, behind = after.partition(CLOSE_TAG)
        call = _call(inner, names)
        if call is None:
            content += before + OPEN_TAG
            rest = after
        else:
            content += before
            calls.append(call)
            rest = behind if found else ""
    content += rest
    return (content.strip() if calls else content), calls


def _call(text: str, names: frozenset[str]) -> Call | None:
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(data, dict) or data.get("name") not in names:
        return None
    arguments = data.get("arguments", data.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    return Call(call_id(), data["name"], json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))
