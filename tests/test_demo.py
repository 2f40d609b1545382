"""The demo's own parts; with the real model: what it promises."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from fake_extraction import Characters
from ramet.runtime.frontend.requests import Chunk
from ramet.runtime.protocol.messages import Usage

from ramet.demo.packages import Package, installed, normalised
from ramet.demo.record import MAX_TOKENS, PackageRecord
from ramet.demo.run import agreement, export
from ramet.demo.show import LiveText, table
from ramet.extraction.extractor import Outcome
from ramet.extraction.records import Record
from ramet.extraction.sources import Document


class Installed(Distribution):
    """A distribution made of given fields."""

    def __init__(self, description: str = "", **fields: str) -> None:
        self._message = Message()
        for name, value in fields.items():
            self._message[name.replace("_", "-")] = value
        self._message.set_payload(description)

    @property
    def metadata(self) -> Message:  # type: ignore[override]
        return self._message

    def read_text(self, filename: str) -> str | None:
        return None

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


def test_packages_are_taken_once_in_the_order_of_their_names() -> None:
    found = [Installed(Name="b", Version="1"), Installed(Name="A_x", Version="2"), Installed(Name="a-X", Version="3")]
    assert [(package.name, package.version) for package in installed(9, found)] == [("A_x", "2"), ("b", "1")]
    assert len(installed(1, found)) == 1
    with_ramet = [*found, Installed(Name="ramet", Version="4")]
    assert [package.name for package in installed(3, with_ramet)] == ["ramet", "A_x", "b"]
    assert [package.name for package in installed(2, with_ramet)] == ["A_x", "b"]  # it takes no other's place
    assert installed(9, [Installed(Version="1")]) == []


def test_the_summary_stands_in_for_a_short_description() -> None:
    [short] = installed(1, [Installed("tiny", Name="a", Version="1", Summary="Does things.")])
    [long] = installed(1, [Installed("long text " * 30, Name="a", Version="1", Summary="Does things.")])
    assert not short.has_description and short.document.text.endswith("\n\nDoes things.")
    assert long.has_description and long.document.text.endswith("long text")
    assert long.document.text.startswith('[project]\nname = "a"\nversion = "1"\nsummary = "Does things."\n')


def test_pictures_and_markup_are_left_out() -> None:
    text = (
        "[![badge](https://x/y.svg)](https://z) ![p](q) <p align='c'>See</p> [docs](https://d) <!-- no -->" + "." * 200
    )
    [package] = installed(1, [Installed(text, Name="a", Version="1")])
    assert "https" not in package.document.text and "<" not in package.document.text
    assert "See [docs]" in package.document.text


@pytest.mark.parametrize(
    ("a", "b"), [("Jinja2", "jinja2"), ("typing_extensions", "Typing.Extensions"), ("a--b", "a_b")]
)
def test_names_compare_as_indexes_compare_them(a: str, b: str) -> None:
    assert normalised(a) == normalised(b)


def test_agreement_counts_names_and_versions() -> None:
    packages = [Package(name, "1.0", Document(name, ""), True) for name in ("Foo_bar", "x", "y")]
    values: list[object] = [{"name": "foo-bar", "version": "1.0"}, {"name": "z", "version": "1.0"}, None]
    outcomes = [Outcome(Record("", "ok", value), Usage()) for value in values]
    assert (agreement(packages, outcomes).names, agreement(packages, outcomes).versions) == (1, 2)


@pytest.mark.parametrize("colour", [True, False])
def test_the_live_text_is_the_generated_text(colour: bool) -> None:
    text, out = '{"name":"é漢"}', io.StringIO()
    live = LiveText(Characters(), out, colour=colour)
    for at, character in enumerate(text):
        live(Chunk(0, at, character, [ord(character)], bytes([at % 2])))
    assert re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()) == text
    assert ("\x1b[2m" in out.getvalue()) == colour


def test_the_table_keeps_to_the_terminals_width() -> None:
    shown = table(("name", "purpose"), [["a", "x" * 300], ["longer", "short"]], width=60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "longer" in shown and "short" in shown


def test_the_record_is_bounded_so_that_no_budget_cuts_it() -> None:
    """A character takes at most four tokens (its bytes), and every string of the schema has a longest form."""
    longest = {"name": 60, "version": 24, "purpose": 160, "license": 10, "category": 16}
    characters = sum(longest.values()) + 4 * 20 + len('"":,') * 6 + sum(map(len, PackageRecord.model_fields)) + 20
    assert 4 * characters < MAX_TOKENS
    properties = PackageRecord.model_json_schema()["properties"]
    for name, field in properties.items():
        bounded = "maxLength" in field or "enum" in field or re.search(r"\{\d+,\d+\}", field.get("pattern", ""))
        assert bounded or (name == "keywords" and field["maxItems"] == 4), name


def test_the_schema_holds_no_value_of_a_document() -> None:
    schema = json.dumps(PackageRecord.model_json_schema())
    assert not [package.name for package in installed(200) if len(package.name) > 5 and f'"{package.name}"' in schema]


def test_what_is_exported_is_what_the_command_reads(tmp_path: Path) -> None:
    from ramet.extraction.schema import load
    from ramet.extraction.sources import read

    packages = installed(5)
    export(tmp_path / "files", packages)
    documents = list(read(tmp_path / "files" / "packages.jsonl"))
    assert documents == [package.document for package in packages]
    assert json.loads(load(str(tmp_path / "files" / "schema.json")).text)["title"] == "PackageRecord"


def shuffled(packages: list[Package], seed: int) -> list[Package]:
    """Each package's metadata with another one's document."""
    order = list(range(len(packages)))
    rng = random.Random(seed)
    while any(at == place for at, place in enumerate(order)):
        rng.shuffle(order)
    return [
        Package(package.name, package.version, packages[place].document, package.has_description)
        for package, place in zip(packages, order, strict=True)
    ]


def run_demo(capsys: pytest.CaptureFixture[str], packages: Callable[[int], list[Package]]) -> dict[str, float]:
    """The figures of the closing line, with these packages."""
    from ramet.demo import run
    from ramet.session import SessionOptions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "installed", packages)
        out = io.StringIO()
        assert run.demo(SessionOptions(progress=False), out=out) == 0
    printed = out.getvalue()
    figures = {name: float(value) for name, value in (item.split("=") for item in printed.splitlines()[-1].split())}
    shares = re.search(r"from the cache: ([\d.]+)%.*could give: ([\d.]+)%", printed)
    assert shares is not None
    return {**figures, "share": float(shares[1]), "optimum": float(shares[2])}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_demo_keeps_its_promises(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = run_demo(capsys, installed)
    assert figures["records"] == figures["valid"] == len(installed(40))
    assert figures["names"] >= 0.8 * figures["records"]
    assert figures["prompt_tokens"] == figures["cached_tokens"] + figures["computed_tokens"]
    assert abs(figures["share"] - figures["optimum"]) <= 1.0


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_names_come_from_the_documents(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = run_demo(capsys, lambda limit: shuffled(installed(limit), seed=3))
    assert figures["valid"] == figures["records"]
    assert figures["names"] <= 0.1 * figures["records"]
