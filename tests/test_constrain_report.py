"""`ramet schema` says what becomes of each keyword, and fails where one is refused."""

from __future__ import annotations

import json

import pytest
from ramet.runtime.constrain.report import check

from ramet.cli import main


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)


SCHEMA = {
    "title": "Entry",
    "type": "object",
    "properties": {
        "color": {"type": "string", "format": "color"},
        "day": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "flags": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
        "shape": {"oneOf": [{"properties": {"k": {"const": n}}, "required": ["k"], "type": "object"} for n in "ab"]},
    },
    "required": ["day", "shape"],
    "additionalProperties": False,
}


def test_every_keyword_has_a_status(tokenizer):
    report = check(SCHEMA, tokenizer)
    status = {entry.pointer: entry.status for entry in report.entries}
    assert report.ok and report.lane == "engine" and report.rules > 5 and report.values > 5
    assert status["/title"] == "annotation"
    assert status["/properties/color/format"] == "annotation"
    assert status["/properties/day/format"] == "enforced"
    assert status["/properties/tags/uniqueItems"] == "watched"
    assert status["/properties/flags/uniqueItems"] == "enforced"
    assert status["/properties/shape/oneOf"] == "proved"
    assert json.loads(report.example)["shape"]["k"] in "ab"
    assert 0 < report.forced_tokens < report.example_tokens


def test_all_refusals_are_named_not_the_first_alone(tokenizer):
    report = check({"properties": {"a": {"not": {"uniqueItems": True}}, "b": {"pattern": "(a)\\1"}}}, tokenizer)
    refused = {entry.pointer for entry in report.entries if entry.status == "refused"}
    assert not report.ok and refused == {"/properties/a/not/uniqueItems", "/properties/b/pattern"}


def test_alternatives_that_overlap_are_enforced_not_proved(tokenizer):
    report = check({"oneOf": [{"type": "integer"}, {"minimum": 2, "type": "number"}]}, tokenizer)
    (entry,) = (entry for entry in report.entries if entry.keyword == "oneOf")
    assert entry.status == "enforced"


def test_what_an_old_draft_ignores_is_an_annotation(tokenizer):
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"type": "string"}}}
    report = check(schema | {"$ref": "#/definitions/a", "minLength": 3}, tokenizer)
    assert {entry.status for entry in report.entries if entry.keyword == "minLength"} == {"annotation"}


def test_the_command_ends_with_a_status_for_scripts(tmp_path, capsys, model_dir):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(SCHEMA))
    bad.write_text(json.dumps({"not": {"unevaluatedItems": False}}))
    assert main(["schema", str(good)]) == 0
    assert "tokens" in capsys.readouterr().out
    assert main(["schema", str(bad)]) == 1
    assert "/not/unevaluatedItems" in capsys.readouterr().out
    assert main(["schema", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["schema", str(tmp_path / "none.json")]) == 1
