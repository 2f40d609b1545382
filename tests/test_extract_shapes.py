"""Records in their other shapes: as they are written, with optional fields, from chunks of a long document."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

from fake_extraction import Characters, FakeClient, Reply, Turns
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from ramet.runtime.protocol.messages import Usage
from test_extract_job import Submit, submit

from ramet.extraction.estimate import Counts
from ramet.extraction.extractor import Extractor, Options
from ramet.extraction.merge import chunks, merged
from ramet.extraction.optional import with_optional, without_nulls
from ramet.extraction.prompt import Instruction, frame
from ramet.extraction.schema import target
from ramet.extraction.sources import Document
from ramet.extraction.streaming import TypedSnapshots, array_items, partial_model, snapshots

__all__ = ["submit"]


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    bounds = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


ITEMS = st.lists(st.dictionaries(st.sampled_from("ab"), st.text(max_size=5) | st.integers(), max_size=2), max_size=5)


@settings(deadline=None)
@given(ITEMS, st.lists(st.integers(0, 400), max_size=30))
def test_items_come_once_whole_and_in_order(items: list[dict[str, object]], cuts: list[int]) -> None:
    text = json.dumps({"title": "x", "items": items, "rest": [1]})
    assert list(array_items(pieces(text, cuts), "items")) == items
    assert list(array_items(pieces(json.dumps(items), cuts))) == items


def test_an_item_comes_as_soon_as_it_is_whole() -> None:
    source = iter(['{"n": 1, "items": [{"a": "x"', "}", ', {"a": "y"}', ', {"a": "never'])
    items = array_items(source)
    assert next(items) == {"a": "x"}
    assert next(source) == ', {"a": "y"}'


@settings(deadline=None)
@given(ITEMS, st.lists(st.integers(0, 400), max_size=30))
def test_the_last_snapshot_is_the_whole(items: list[dict[str, object]], cuts: list[int]) -> None:
    value = {"items": items}
    assert list(snapshots(pieces(json.dumps(value), cuts)))[-1] == value


class Inner(BaseModel):
    label: str
    count: int


class Outer(BaseModel):
    title: str
    inner: Inner
    many: list[Inner]
    maybe: Inner | None = None
    again: Outer | None = None


def test_typed_snapshots_have_what_is_there() -> None:
    text = '{"title":"abc","inner":{"label":"x","count":12},"many":[{"label":"y","count":3},{"lab'
    *_, last = TypedSnapshots(Outer, [text[:at] for at in (0,)] + list(text))
    assert (last.title, last.inner.label, last.inner.count) == ("abc", "x", 12)  # type: ignore[attr-defined]
    assert [item.label for item in last.many] == ["y", None]  # type: ignore[attr-defined]
    assert last.maybe is None  # type: ignore[attr-defined]
    assert partial_model(Outer).model_validate({}).title is None  # type: ignore[attr-defined]


class Person(BaseModel):
    name: str
    age: int | None = None
    nick: str = "none"


def test_optional_fields_are_the_models_choice_left_out_or_always_written() -> None:
    as_it_is, omitted, written = (json.loads(target(Person, mode).text) for mode in ("model", "omit", "null"))  # type: ignore[arg-type]
    assert as_it_is["required"] == ["name"] and set(as_it_is["properties"]) == {"name", "age", "nick"}
    assert set(omitted["properties"]) == {"name"} and omitted["additionalProperties"] is False
    assert written["required"] == ["name", "age", "nick"]
    assert {"type": "null"} in written["properties"]["nick"]["anyOf"]


def test_nulls_that_only_say_not_there_are_taken_out() -> None:
    schema = Person.model_json_schema()
    assert without_nulls(schema, {"name": "x", "age": None, "nick": None}) == {"name": "x", "age": None}
    nested = {"type": "array", "items": {"$ref": "#/$defs/p"}, "$defs": {"p": schema}}
    assert without_nulls(nested, [{"name": "x", "nick": None}]) == [{"name": "x"}]
    assert with_optional(schema, "model") is schema


@settings(deadline=None)
@given(st.text(alphabet="ab c.\n", max_size=300), st.integers(1, 40))
def test_chunks_are_the_document_in_parts_that_fit(text: str, room: int) -> None:
    made = chunks(text, room, Characters())
    assert "".join(piece.text for piece in made) == text
    assert all(1 <= len(piece.text) <= room for piece in made)
    assert [piece.start for piece in made] == [sum(len(p.text) for p in made[:at]) for at in range(len(made))]


def test_chunks_are_cut_between_paragraphs_before_words() -> None:
    text = "one two three.\n\nfour five six seven eight"
    assert [piece.text for piece in chunks(text, 20, Characters())] == [
        "one two three.\n\n",
        "four five six seven ",
        "eight",
    ]


def test_merging_joins_arrays_and_keeps_the_first_of_everything_else() -> None:
    value, origins = merged(
        [
            {"title": "", "items": [{"a": 1}], "meta": {"by": None, "tags": ["x"]}},
            {"title": "T", "items": [], "meta": {"by": "me", "tags": []}},
            {"title": "U", "items": [{"a": 2}, {"a": 3}], "meta": {"by": "you", "tags": ["y"]}},
        ]
    )
    assert value == {
        "title": "T",
        "items": [{"a": 1}, {"a": 2}, {"a": 3}],
        "meta": {"by": "me", "tags": ["x", "y"]},
    }
    assert origins == {"/items/0": 0, "/items/1": 2, "/items/2": 2, "/meta/tags/0": 0, "/meta/tags/1": 2}


def test_one_failing_chunk_is_named(submit: Submit) -> None:
    around = frame(Instruction("s", "<", ">"), Turns(), Characters())
    client = FakeClient(lambda prompt: Reply('{"n":[1]}', reason="length" if "bad" in prompt else "end"))
    room = 40
    made = Extractor(
        client,  # type: ignore[arg-type]
        Characters(),  # type: ignore[arg-type]
        around,
        target({"type": "object"}),
        around.size + 50 + room,
        Options(max_tokens=50, fit="map"),
    )
    outcome = submit(made.extract(Document("d", "fine text. " * 8 + "bad " + "text. " * 3))).result()
    assert outcome.record.status == "length" and "chunk 3 of" in (outcome.record.error or "")
    assert outcome.record.attempts == len(client.requests) > 2


def test_an_estimate_counts_the_shared_beginning_once() -> None:
    counts = Counts(prefix=100, suffix=10)
    for size in (20, 30, 50):
        counts.add(size)
    estimate = counts.estimate((Usage(130, 0, 130, 20, 5, 15), 1.0), rows=64)
    assert (estimate.documents, estimate.prompt, estimate.shared, estimate.longest) == (3, 430, 200, 50)
    assert estimate.seconds is not None and 0.5 < estimate.seconds < 3.0
    assert "shared_tokens=200" in str(estimate)
    assert counts.estimate(None, 64).seconds is None
