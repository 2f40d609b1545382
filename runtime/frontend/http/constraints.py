"""Which constraint a request asks for: at most one, and none is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from ramet.runtime.protocol.messages import ConstraintSpec

from .errors import bad_request
from .fields import GenerationBody

ANY_OBJECT = '{"type":"object"}'


@dataclass(frozen=True)
class Asked:
    """``param``: the field that the constraint came from."""

    param: str
    spec: ConstraintSpec


def asked_constraint(body: GenerationBody) -> Asked | None:
    """Raises HttpError for two constraints at once, and for formats that are not known."""
    whitespace = body.whitespace or "compact"
    found: list[Asked] = []

    def add(param: str, kind: str, text: str) -> None:
        found.append(Asked(param, ConstraintSpec(kind, text, whitespace)))

    if body.response_format is not None:
        text = _response_format(body)
        if text is not None:
            add("response_format", "json_schema", text)
    for param in ("regex", "guided_regex"):
        if (pattern := getattr(body, param)) is not None:
            add(param, "regex", pattern)
    for param in ("choice", "guided_choice"):
        if (choices := getattr(body, param)) is not None:
            add(param, "choice", _dump(choices))
    for param in ("grammar", "ebnf", "guided_grammar"):
        if (grammar := getattr(body, param)) is not None:
            add(param, *_grammar(grammar))
    if body.guided_json is not None:
        add("guided_json", "json_schema", _schema(body.guided_json))
    structured = body.structured_outputs
    if structured is not None:
        if structured.json_ is not None:
            add("structured_outputs", "json_schema", _schema(structured.json_))
        if structured.json_object:
            add("structured_outputs", "json_schema", ANY_OBJECT)
        if structured.regex is not None:
            add("structured_outputs", "regex", structured.regex)
        if structured.choice is not None:
            add("structured_outputs", "choice", _dump(structured.choice))
        if structured.grammar is not None:
            add("structured_outputs", *_grammar(structured.grammar))
    if len(found) > 1:
        names = ", ".join(asked.param for asked in found)
        raise bad_request(f"one constraint at a time: {names} were given together", found[1].param)
    return found[0] if found else None


def _response_format(body: GenerationBody) -> str | None:
    form = body.response_format
    assert form is not None
    if form.type == "text":
        return None
    if form.type == "json_object":
        return ANY_OBJECT
    if form.type != "json_schema":
        raise bad_request(
            f"response_format.type is {form.type!r}; possible are text, json_object and json_schema",
            "response_format.type",
        )
    if form.json_schema is None or form.json_schema.schema_ is None:
        raise bad_request(
            'response_format needs json_schema: {"name": ..., "schema": {...}}',
            "response_format.json_schema",
            "missing_required_parameter",
        )
    return _dump(form.json_schema.schema_)


def _schema(given: dict[str, Any] | bool | str) -> str:
    return given if isinstance(given, str) else _dump(given)


def _grammar(text: str) -> tuple[str, str]:
    """GBNF (and EBNF) writes ``name ::= ...``, Lark ``name: ...``."""
    return ("gbnf" if "::=" in text else "lark"), text


def _dump(value: object) -> str:
    """In the order that was given: the order of properties is the order of the output."""
    return orjson.dumps(value).decode()
