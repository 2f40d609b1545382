"""Everyday Python types compile, take their own values, and refuse others."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import uuid
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import AnyUrl, BaseModel, Field, TypeAdapter, ValidationError
from ramet.runtime.constrain import compile
from ramet.runtime.constrain.types import function_schema, schema_of, tool_calls
from ramet.runtime.protocol.errors import InvalidConstraint
from typing_extensions import TypedDict

from ramet.testing import accepts


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


@dataclasses.dataclass
class Point:
    x: int
    label: str = "p"


class Movie(TypedDict, total=False):
    title: str
    year: int


class Pair(NamedTuple):
    left: int
    right: str


TABLE: list[tuple[Any, str, str]] = [
    (set[str], '["a","b"]', '["a","a"]'),
    (set[Color], '["red","blue"]', '["red","red"]'),
    (frozenset[int], "[1,2]", "[1,1]"),
    (set[dt.date], '["2024-02-29"]', '["2023-02-29"]'),
    (Annotated[set[str], Field(min_length=1, max_length=2)], '["a"]', "[]"),
    (dict[Color, int], '{"blue":1}', '{"green":1}'),
    (dict[str, list[int]], '{"a":[1]}', '{"a":["x"]}'),
    (Path, '"/tmp/x"', "1"),
    (bytes, '"abc"', "1"),
    (Decimal, '"1.50"', "null"),
    (dt.date, '"2024-02-29"', '"2023-02-29"'),
    (dt.datetime, '"2024-02-29T12:00:00Z"', '"2024-02-30T12:00:00Z"'),
    (dt.time, '"12:00:00Z"', '"25:00:00Z"'),
    (dt.timedelta, '"P1DT2H"', '"soon"'),
    (uuid.UUID, '"12345678-1234-5678-1234-567812345678"', '"1234"'),
    (AnyUrl, '"https://example.org/x"', '"no url"'),
    (Cat | Dog, '{"kind":"dog","name":"x"}', '{"kind":"dog"}'),
    (Annotated[Cat | Dog, Field(discriminator="kind")], '{"kind":"cat"}', '{"kind":"cow"}'),
    (tuple[int, str], '[1,"a"]', "[1]"),
    (tuple[int, ...], "[1,2,3]", '["a"]'),
    (Tree, '{"value":1,"children":[{"value":2}]}', '{"value":1,"children":[{}]}'),
    (Annotated[int, Field(ge=0, lt=10)], "9", "10"),
    (Annotated[int, Field(multiple_of=7)], "21", "22"),
    (Annotated[float, Field(gt=0)], "0.001", "0"),
    (Annotated[str, Field(min_length=2, max_length=4, pattern="^[a-z]+$")], '"abc"', '"abcde"'),
    (Point, '{"x":1}', '{"label":"a"}'),
    (Movie, '{"year":1999}', '{"year":"x"}'),
    (Pair, '[1,"a"]', '["a",1]'),
    (int | None, "null", '"x"'),
    (Literal[1, "a", None, True], "true", "2"),
    (dict, '{"x":[1,{"y":null}]}', "[]"),
    (float, "1.5", '"x"'),
]


@pytest.mark.parametrize(("annotation", "good", "bad"), TABLE, ids=lambda value: str(value)[:40])
def test_a_type_takes_its_values_only(annotation, good, bad):
    schema = schema_of(annotation)
    assert accepts(schema, good)
    assert not accepts(schema, bad)
    adapter = TypeAdapter(annotation)
    adapter.validate_json(good)
    if annotation not in (set[str], set[Color], frozenset[int]):  # pydantic drops what is there twice
        with pytest.raises(ValidationError):
            adapter.validate_json(bad)


def test_types_without_a_json_form_are_named():
    with pytest.raises(InvalidConstraint, match="object"):
        schema_of(object())


def search(query: str, limit: Annotated[int, Field(ge=1, le=5)] = 3, *, tags: list[str] | None = None) -> str:
    """Search the documents.

    More about it.
    """
    return query


def test_functions_become_tools():
    tool = function_schema(search)
    assert (tool["name"], tool["description"]) == ("search", "Search the documents.")
    assert tool["parameters"]["required"] == ["query"]
    assert accepts(tool["parameters"], '{"query":"x","limit":5}')
    assert not accepts(tool["parameters"], '{"query":"x","limit":6}')
    assert not accepts(tool["parameters"], '{"query":"x","other":1}')

    def variadic(*args: int) -> None: ...

    with pytest.raises(InvalidConstraint, match="args"):
        function_schema(variadic)


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)


def test_calls_stand_in_free_text(tokenizer):
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "required": ["c"]}}}

    def takes(text: str, **options: bool) -> bool:
        matcher = compile(tool_calls([search, weather], **options), tokenizer).matcher()
        return matcher.advance(tokenizer.encode(text)) and matcher.can_end

    call = '<tool_call>\n{"name":"search","arguments":{"query":"x"}}\n</tool_call>'
    other = '<tool_call>\n{"name":"weather","arguments":{"c":1}}\n</tool_call>'
    assert takes("Just text, 1 < 2.")
    assert takes(f"Let me see. {call}")
    assert takes(f"{call} and {other} done")
    assert not takes(call.replace("search", "delete"))
    assert not takes(call.replace('"x"', "1"))
    assert not takes("just text", required=True)
    assert takes(call, required=True, one=True)
    assert not takes(f"{call} more", required=True, one=True)


def test_a_schema_by_name_of_its_tag_only(tokenizer):
    from ramet.runtime.protocol.messages import ConstraintSpec

    for text in ("{}", '{"tags":[]}', '{"tags":[{"begin":"","end":"x"}]}', json.dumps({"tags": [{"begin": "a"}]})):
        with pytest.raises(InvalidConstraint):
            compile(ConstraintSpec("structural", text), tokenizer)
