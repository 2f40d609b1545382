"""Small things that every route needs."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response


def json_response(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")


def tenant_of(request: Request) -> str:
    tenant: str = request.state.tenant
    return tenant


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The endpoints read bodies themselves (errors in our shape); the documentation shows their type all the same."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    inlined = _inline(schema, definitions)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inline(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
        return {key: _inline(value, definitions) for key, value in schema.items()}
    return [_inline(item, definitions) for item in schema] if isinstance(schema, list) else schema
