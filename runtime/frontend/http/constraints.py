"""Which constraint a request asks for: at most one, and none is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from ramet.runtime.protocol.messages import ConstraintSpec

from .errors import bad_request
from .fields import GenerationBody, ResponseFormat, StructuredOutputs
from .unknown import unsupported

ANY_OBJECT = '{"type":"object"}'
_FORMATS = "text, json_object, json_schema, structural_tag and regex"


@dataclass(frozen=True)
class Asked:
    """``param``: the field that the constraint came from."""

    param: str
    spec: ConstraintSpec


class Found:
    """Collects what a body asks for, field by field."""

    def __init__(self, whitespace: str = "compact") -> None:
        self._whitespace = whitespace
        self._found: list[Asked] = []

    def add(self, param: str, kind: str, text: str) -> None:
        self._found.append(Asked(param, ConstraintSpec(kind, text, self._whitespace)))

    def schema(self, param: str, given: dict[str, Any] | bool | str | None) -> None:
        if given is not None:
            self.add(param, "json_schema", given if isinstance(given, str) else dump(given))

    def regex(self, param: str, pattern: str | None) -> None:
        if pattern is not None:
            self.add(param, "regex", pattern)

    def choice(self, param: str, choices: list[str] | None) -> None:
        if choices is not None:
            self.add(param, "choice", dump(choices))

    def grammar(self, param: str, text: str | None) -> None:
        """GBNF (and EBNF) writes ``name ::= ...``, Lark ``name: ...``. Empty: none is asked for."""
        if text:
            self.add(param, "gbnf" if "::=" in text else "lark", text)

    def one(self) -> Asked | None:
        """Raises HttpError for two constraints at once."""
        if len(self._found) > 1:
            names = ", ".join(asked.param for asked in self._found)
            raise bad_request(f"one constraint at a time: {names} were given together", self._found[1].param)
        return self._found[0] if self._found else None


def asked_constraint(body: GenerationBody) -> Asked | None:
    """Raises HttpError for two constraints at once, and for formats that are not known."""
    structured = body.structured_outputs
    compact = structured is not None and bool(structured.disable_any_whitespace)
    found = Found("compact" if compact else body.whitespace or "compact")
    if body.response_format is not None:
        _response_format(found, body.response_format)
    for param in ("regex", "guided_regex"):
        found.regex(param, getattr(body, param))
    for param in ("choice", "guided_choice"):
        found.choice(param, getattr(body, param))
    for param in ("grammar", "ebnf", "guided_grammar"):
        found.grammar(param, getattr(body, param))
    for param in ("json_schema", "guided_json"):
        found.schema(param, getattr(body, param))
    if structured is not None:
        _structured(found, structured)
    return found.one()


def _structured(found: Found, asked: StructuredOutputs) -> None:
    param = "structured_outputs"
    asked.ignored()
    found.schema(param, asked.json_)
    found.schema(param, ANY_OBJECT if asked.json_object else None)
    found.regex(param, asked.regex)
    found.choice(param, asked.choice)
    found.grammar(param, asked.grammar)
    if asked.structural_tag is not None:
        structural_tag(found, f"{param}.structural_tag", asked.structural_tag)


def _response_format(found: Found, form: ResponseFormat) -> None:
    param = "response_format"
    match form.type:
        case "text":
            return
        case "json_object":
            found.schema(param, ANY_OBJECT if form.schema_ is None else form.schema_)
        case "json_schema" | "json":
            found.schema(param, _schema_of(form))
        case "regex" if isinstance(form.value, str):
            found.regex(param, form.value)
        case "structural_tag":
            tags = [{"begin": one.begin, "end": one.end, "schema": one.schema_} for one in form.structures or []]
            structural_tag(found, param, {**(form.model_extra or {}), "structures": tags, "triggers": form.triggers})
        case _:
            raise bad_request(f"response_format.type is {form.type!r}; possible are {_FORMATS}", "response_format.type")


def _schema_of(form: ResponseFormat) -> dict[str, Any] | bool | str:
    """From where each server has it: json_schema.schema, schema, value, value.schema."""
    if form.json_schema is not None and form.json_schema.schema_ is not None:
        return form.json_schema.schema_
    if form.schema_ is not None:
        return form.schema_
    value = form.value
    if form.type == "json_schema" and isinstance(value, dict):
        value = value.get("schema")
    if isinstance(value, dict | bool | str):
        return value
    raise bad_request(
        'response_format needs json_schema: {"name": ..., "schema": {...}}',
        "response_format.json_schema",
        "missing_required_parameter",
    )


def structural_tag(found: Found, param: str, given: str | dict[str, Any]) -> None:
    """Free text in which tagged values may stand, given as ``structures`` and ``triggers``.

    Raises HttpError for other shapes.
    """
    data: Any = given
    if isinstance(given, str):
        try:
            data = orjson.loads(given)
        except orjson.JSONDecodeError as error:
            raise bad_request(f"{param} is not JSON: {error}", param) from None
    if isinstance(data, dict) and "format" in data:
        raise unsupported(f"{param}.format")
    structures = data.get("structures") if isinstance(data, dict) else None
    if not isinstance(structures, list) or not structures:
        raise bad_request(f'{param} needs structures: [{{"begin", "schema", "end"}}, ...] and triggers', param)
    try:
        tags = [{"begin": one["begin"], "end": one["end"], "schema": _any(one.get("schema"))} for one in structures]
    except (KeyError, TypeError, AttributeError):
        raise bad_request(f"{param}: each of its structures needs begin, schema and end", param) from None
    found.add(param, "structural", dump({"tags": tags, "triggers": data.get("triggers") or []}))


def _any(schema: object) -> object:
    return True if schema is None else schema


def dump(value: object) -> str:
    """In the order that was given: the order of properties is the order of the output."""
    return orjson.dumps(value).decode()
