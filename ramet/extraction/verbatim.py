"""Fields that are copied from the document: ``document[a:b] == value``, always.

The printed schema is one for all documents: there, such a field is a string with the keyword ``x-ramet-verbatim``. A
document is bound to it when its request is made: the field becomes a constant that stands for the substrings of the
document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ramet.runtime.frontend.partial_json import Path, pointer
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.protocol.messages import ConstraintSpec

KEYWORD = "x-ramet-verbatim"
Unit: TypeAlias = 'Literal["words", "characters"]'
Json: TypeAlias = "Mapping[str, object]"

_DEPTH = 12
"""References of a schema are followed so far: a recursive one has no end."""


@dataclass(frozen=True)
class Copied:
    """In an ``Annotated`` string: a field that is copied from the document, cut between its words, or anywhere."""

    unit: Unit = "words"

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), KEYWORD: self.unit}


Verbatim: TypeAlias = Annotated[str, Copied("words")]
"""A string that stands in the document word for word. ``Field(min_length=..., max_length=...)`` bounds it."""

VerbatimText: TypeAlias = Annotated[str, Copied("characters")]
"""A string that stands in the document letter for letter, and may begin and end inside of words."""


@dataclass(frozen=True)
class _Field:
    """What stands for a copied field in the constraint: a constant, and the limits of what it stands for."""

    constant: str
    unit: Unit
    shortest: int
    longest: int

    def bound_to(self, document: str) -> dict[str, object]:
        return {"text": document, "unit": self.unit, "shortest": self.shortest, "longest": self.longest}


class Binding:
    """The copied fields of a schema; ``fields`` is empty where it has none."""

    def __init__(self, schema: object) -> None:
        self.schema = schema
        self.fields: dict[str, _Field] = {}
        self._text = json.dumps(self._replaced(schema), ensure_ascii=False)

    def spec(self, document: str) -> ConstraintSpec:
        """The constraint of the records of one document."""
        if not self.fields:
            return ConstraintSpec("json_schema", self._text)
        bound = {constant: field.bound_to(document) for constant, field in self.fields.items()}
        options = json.dumps({"substrings": bound}, ensure_ascii=False)
        return ConstraintSpec("json_schema", self._text, options=options)

    def spans(self, value: object, document: str) -> dict[str, tuple[int, int]] | None:
        """By JSON pointer of each copied field of a record: where its text first stands in the document, as characters
        [start, end). None where the schema has no such field."""
        if not self.fields:
            return None
        found = {}
        for path, text in _copied(self.schema, self.schema, value, (), 0):
            start = document.find(text)
            if start >= 0:
                found[pointer(path)] = (start, start + len(text))
        return found

    def _replaced(self, schema: object) -> object:
        if isinstance(schema, list):
            return [self._replaced(part) for part in schema]
        if not isinstance(schema, Mapping):
            return schema
        unit = schema.get(KEYWORD)
        if unit is None or schema.get("type") != "string":
            return {key: self._replaced(part) for key, part in schema.items()}
        if unit not in ("words", "characters"):
            raise InvalidRequest(f"{KEYWORD} is {unit!r}; it must be 'words' or 'characters'", param="schema")
        for keyword in ("pattern", "format", "enum", "const"):
            if keyword in schema:
                raise InvalidRequest(
                    f"a field that is copied from the document can't have {keyword}: only minLength and maxLength go "
                    "with it",
                    param="schema",
                )
        field = self._field(cast(Unit, unit), schema.get("minLength"), schema.get("maxLength"))
        return {"const": field.constant}

    def _field(self, unit: Unit, low: object, high: object) -> _Field:
        shortest, longest = (bound if isinstance(bound, int) else 0 for bound in (low, high))
        constant = f"\u2983{unit} {shortest} {longest}\u2984"
        return self.fields.setdefault(constant, _Field(constant, unit, max(1, shortest), longest))


def _copied(schema: object, root: object, value: object, path: Path, depth: int) -> Iterator[tuple[Path, str]]:
    """The copied fields that ``value`` holds."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: object = root
        for part in reference[2:].split("/"):
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        yield from _copied(target, root, value, path, depth + 1)
    if KEYWORD in schema and isinstance(value, str):
        yield path, value
    for keyword in ("anyOf", "oneOf", "allOf"):
        options = schema.get(keyword)
        for option in options if isinstance(options, list) else ():
            yield from _copied(option, root, value, path, depth + 1)
    properties = schema.get("properties")
    if isinstance(value, Mapping) and isinstance(properties, Mapping):
        for name, inner in value.items():
            yield from _copied(properties.get(name), root, inner, (*path, name), depth + 1)
    if isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _copied(schema.get("items"), root, inner, (*path, at), depth + 1)
