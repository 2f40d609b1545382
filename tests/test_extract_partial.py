"""JSON that may end anywhere: every beginning of a text can be read, and says what it lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.runtime.frontend.partial_json import pointer, read

from ramet.extraction.fields import sampled
from ramet.extraction.missing import missing

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.booleans(), st.booleans())
def test_a_whole_text_reads_as_json_does(value: object, ascii: bool, spaced: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii, separators=None if spaced else (",", ":"))
    found = read(text)
    assert found.value == value and found.cut is None


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.booleans())
def test_every_beginning_is_a_snapshot_of_the_whole(value: object, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    earlier: object = None
    for end in range(len(text) + 1):
        snapshot = read(text[:end]).value
        assert _extends(earlier, snapshot), (text[:end], earlier, snapshot)
        earlier = snapshot
    assert earlier == value


def _extends(earlier: object, later: object) -> bool:
    """What was there stays; strings and lists grow at their end, objects gain properties."""
    if earlier is None:
        return True
    if isinstance(earlier, str) and isinstance(later, str):
        return later.startswith(earlier)
    if isinstance(earlier, list) and isinstance(later, list):
        return len(later) >= len(earlier) and all(map(_extends, earlier, later))
    if isinstance(earlier, dict) and isinstance(later, dict):
        return all(key in later and _extends(value, later[key]) for key, value in earlier.items())
    return earlier == later


@given(VALUES)
def test_leaves_stand_where_their_spans_say(value: object) -> None:
    text = json.dumps(value)
    for span in read(text).leaves:
        at = value
        for part in span.path:
            assert isinstance(at, (list, Mapping))
            at = at[part]  # type: ignore[index,call-overload]
        assert json.loads(text[span.start : span.end]) == at


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("", ()),
        ('{"a":1', ("a",)),
        ('{"a":1,', ()),
        ('{"a":[1,{"b":"x', ("a", 1, "b")),
        ('{"a":[1]', ()),
        ('{"a":"x\\', ("a",)),
        ('{"a":tru', ("a",)),
        ('{"a":true}', None),
    ],
)
def test_the_cut_is_named(text: str, cut: tuple[str | int, ...] | None) -> None:
    assert read(text).cut == cut


@pytest.mark.parametrize("text", ["{]", "[1 2]", '{"a" 1}', "nul,", "{1:2}", "1 2", "[1,]x"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        read(text)


def test_what_is_missing_comes_in_the_schemas_order() -> None:
    schema = {"properties": {"a": {}, "b": {}, "c": {}, "d": {}}, "required": ["d", "c", "a"]}
    found = read('{"a":1,"c":"tex')
    assert missing(schema, found.value, found.cut) == ["c", "d"]
    assert missing(schema, {"a": 1, "c": 2, "d": 3}, None) == []
    assert pointer(("a/b", 0, "c~")) == "/a~1b/0/c~0"


PARTS = {
    "properties": {"name": {}, "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}}, "state": {}},
    "required": ["name", "parts", "state"],
    "$defs": {
        "Part": {"properties": {"label": {}, "size": {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}}}
        | {"required": ["label", "size"]},
        "Size": {"type": "object", "properties": {"w": {}, "h": {}}, "required": ["w", "h"]},
    },
}


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        ("", ["name", "parts", "state"]),
        ('{"na', ["name", "parts", "state"]),
        ('{"name":"x', ["name", "parts", "state"]),
        ('{"name":"x","parts":[', ["parts", "state"]),
        ('{"name":"x","parts":[{"label":"a', ["parts/0/label", "parts/0/size", "state"]),
        ('{"name":"x","parts":[{"label":"a","size":null},{"label":"b","size":{"w":1,', ["parts/1/size/h", "state"]),
        ('{"name":"x","parts":[{"label":"a","size":{"w":1', ["parts/0/size/w", "parts/0/size/h", "state"]),
        ('{"name":"x","parts":[],"state":"', ["state"]),
        ('{"name":"x","parts":[],"state":"a"', []),
    ],
)
def test_what_is_missing_is_named_in_full(text: str, lacking: list[str]) -> None:
    found = read(text)
    assert missing(PARTS, found.value if text else {}, found.cut) == lacking


def test_each_sampled_token_counts_for_the_field_that_it_spells() -> None:
    text = '{"a":"one two","b":[1,23],"c":{}}'
    tokens = [b'{"a":', b'"', b"one", b" two", b'","', b'b":', b"[", b"1", b",2", b"3", b"],", b'"c":', b"{}", b"}"]
    forced = bytes([1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1])
    assert b"".join(tokens).decode() == text
    assert sampled(text, tokens, forced) == {"a": 3, "b/*": 3}
    assert sampled("{]", [b"{", b"]"], bytes(2)) == {}
