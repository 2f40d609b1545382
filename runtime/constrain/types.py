"""Python types and functions as JSON Schemas, and calls of functions as constraints."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_type_hints

from ramet.runtime.protocol.errors import InvalidConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

CALL_BEGIN = "<tool_call>\n"
CALL_END = "\n</tool_call>"


def schema_of(annotation: Any) -> dict[str, Any]:
    """JSON Schema of a type: pydantic models, dataclasses, TypedDicts, Literal, Enum, unions, collections, ...

    Raises InvalidConstraint for types that have no JSON form.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        return adapter.json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidConstraint(f"{annotation!r} has no JSON Schema: {error}") from None


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """``{"name", "description", "parameters"}`` of a function: its signature, the first paragraph of its docstring.

    Raises InvalidConstraint for parameters that JSON cannot name (``*args``, ``**kwargs``, positional only).
    """
    from pydantic import ConfigDict, create_model

    fields: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidConstraint(f"parameter {name!r} of {function.__name__} cannot be given by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), default)
    model = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    described = (inspect.getdoc(function) or "").split("\n\n", 1)[0].replace("\n", " ").strip()
    return {"name": function.__name__, "description": described, "parameters": model.model_json_schema()}


def tool_calls(
    tools: Iterable[Callable[..., Any] | Mapping[str, Any]],
    *,
    begin: str = CALL_BEGIN,
    end: str = CALL_END,
    required: bool = False,
    one: bool = False,
) -> ConstraintSpec:
    """Free text in which calls ``begin {"name":...,"arguments":{...}} end`` may stand, each with the arguments that its
    function takes. ``tools``: functions, or OpenAI's tool objects (with or without ``{"type": "function"}`` around).

    ``required``: at least one call; ``one``: the text ends with the first. Raises InvalidConstraint.
    """
    tags = []
    for tool in tools:
        described: Mapping[str, Any] = function_schema(tool) if callable(tool) else tool.get("function", tool)
        name = described.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidConstraint(f"a tool needs a name: {described!r}")
        opening = f'{begin}{{"name":{json.dumps(name, ensure_ascii=False)},"arguments":'
        schema = described.get("parameters") or {"type": "object"}
        tags.append({"begin": opening, "end": f"}}{end}", "schema": schema})
    structure = {"tags": tags, "triggers": [begin], "required": required, "one": one}
    return ConstraintSpec("structural", json.dumps(structure, ensure_ascii=False))
