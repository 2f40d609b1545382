"""Documents are read as they stand, one at a time, and what cannot be read is named with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ramet.runtime.protocol.errors import InvalidRequest

from ramet.extraction.sources import Document, count, read


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_text_field_is_found_by_name_or_by_being_the_only_text(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "docs.jsonl",
        {"id": "a", "text": "first", "title": "t"},
        {"id": 7, "review": "second"},
        {"review": "third"},
        "fourth",
    )
    assert list(read(path)) == [
        Document("a", "first"),
        Document(7, "second"),
        Document(2, "third"),
        Document(3, "fourth"),
    ]
    assert count(path) == 4


def test_named_fields_win(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "docs.jsonl", {"id": 1, "sku": "x9", "text": "no", "review": "yes"})
    assert list(read(path, text="review", id="sku")) == [Document("x9", "yes")]


@pytest.mark.parametrize(
    ("line", "options", "named"),
    [
        ('{"a": "x", "b": "y"}', {}, "'a', 'b'"),
        ('{"a": "x"}', {"text": "b"}, "'a'"),
        ('{"a": "x"}', {"id": "b"}, "'a'"),
        ("{oops", {}, "line 1"),
        ("[1]", {}, "line 1"),
        ('{"n": 1}', {}, "none"),
        ("[" * 100_000, {}, "line 1"),
        ('{"text": "\xff"}', {}, "line 1"),
    ],
)
def test_refusals_name_the_place_and_what_is_there(
    tmp_path: Path, line: str, options: dict[str, str], named: str
) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes((line + "\n").encode("latin-1"))
    with pytest.raises(InvalidRequest) as refusal:
        list(read(path, **options))
    assert named in str(refusal.value)
    assert str(path) in str(refusal.value)


BROKEN_LINES = [
    b"{oops",
    b"[1]",
    b'{"n": 1}',
    b'{"text": "\xff"}',
    b"[" * 100_000,
    b"1" * 5000,
    b'{"text": 5}',
    b"\x00",
]


@pytest.mark.parametrize("line", BROKEN_LINES, ids=lambda line: repr(line[:12]))
def test_a_later_line_that_cannot_be_read_is_that_documents_fault(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n')
    first, broken, last = read(path)
    assert (first, last) == (Document(0, "a"), Document(2, "b"))
    assert broken.id == 1 and broken.text == "" and f"{path}" in broken.fault


def test_a_document_with_a_fault_keeps_its_id(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "docs.jsonl", {"id": "x", "body": "a"}, {"id": "y", "n": 1})
    assert [document.id for document in read(path)] == ["x", "y"]


@pytest.mark.parametrize("name", ["docs.csv", "docs.tsv", "one.txt", "folder"])
def test_bytes_that_are_not_utf_8_are_named_never_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "a.txt").write_bytes(b"good")
        (path / "b.txt").write_bytes(b"caf\xe9")
    elif name == "one.txt":
        path.write_bytes(b"caf\xe9")
    else:
        path.write_bytes(b"text\ngood\ncaf\xe9\n")
    *good, wrong = read(path)
    assert "not UTF-8" in wrong.fault and "0xe9" in wrong.fault and name in wrong.fault
    assert [document.text for document in good] == ["good"] * (name != "one.txt")


def test_csv_keeps_quotes_newlines_and_long_fields(tmp_path: Path) -> None:
    path = tmp_path / "docs.csv"
    long = "x" * 200_000
    path.write_text(f'\ufeffid,body\n1,"a ""quoted"", line\nand another"\n2,{long}\n', encoding="utf-8")
    assert list(read(path)) == [Document("1", 'a "quoted", line\nand another'), Document("2", long)]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.md", "ignored.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [document.id for document in read(tmp_path)] == ["a.txt", "b.txt", "sub/c.md"]


def test_an_iterable_is_read_one_at_a_time() -> None:
    read_so_far = []

    def endless() -> Iterator[str]:
        number = 0
        while True:
            read_so_far.append(number)
            yield f"document {number}"
            number += 1

    documents = read(endless())
    assert [next(documents).text for _ in range(3)] == ["document 0", "document 1", "document 2"]
    assert read_so_far == [0, 1, 2]


@pytest.mark.parametrize("name", ["missing.jsonl", "data.parquet"])
def test_an_unreadable_input_is_refused(tmp_path: Path, name: str) -> None:
    if name.startswith("data"):
        (tmp_path / name).write_text("x")
    with pytest.raises(InvalidRequest, match=name):
        list(read(tmp_path / name))
