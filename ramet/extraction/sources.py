"""Where documents come from: JSONL, CSV, a folder of text files, or any iterable. Read one at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ramet.runtime.protocol.errors import InvalidRequest

TEXT_FIELDS = ("text", "content", "body", "document", "description", "message", "abstract", "article", "page")
ID_FIELDS = ("id", "_id", "uid", "key", "name")

Item: TypeAlias = "str | Mapping[str, object] | Document"
Source: TypeAlias = "str | Path | Iterable[Item]"


@dataclass(frozen=True)
class Document:
    """One input. ``id`` is the input's own, else its number from 0 (or the file's name). ``fault``: why it could not
    be read; its record then says so."""

    id: str | int
    text: str
    fault: str = ""


def read(source: Source, *, text: str | None = None, id: str | None = None) -> Iterator[Document]:
    """Documents of ``source``, in its order.

    text, id: names of the fields that hold them (of JSON objects and CSV rows). Without ``text`` the first field named
    like one of ``TEXT_FIELDS`` is taken, else the only field that holds a string.
    What can't be read (a line that is not JSON, a row without that field, bytes that are not UTF-8) is a Document with
    a ``fault`` that names the place. Raises InvalidRequest: no such file, or a first item of a wrong form, since then
    it is rather the command that is wrong.
    """
    if not isinstance(source, (str, Path)):
        yield from _from_items(source, "item", text, id)
        return
    path = Path(source)
    if path.is_dir():
        yield from _from_folder(path)
    elif not path.is_file():
        raise InvalidRequest(f"{path} is neither a file nor a folder", param="input")
    elif path.suffix.lower() in (".csv", ".tsv"):
        yield from _from_items(_csv_rows(path), f"{path}, row", text, id)
    elif path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        yield from _from_items(_json_lines(path), f"{path}, record", text, id)
    elif path.suffix.lower() in (".txt", ".md"):
        yield _from_text(path, path.name)
    else:
        raise InvalidRequest(
            f"{path}: what it holds is not known from its name; allowed are .jsonl, .csv, .tsv, .txt and a folder of "
            ".txt files",
            param="input",
        )


def count(source: Source) -> int | None:
    """Number of inputs, where it is cheap to know (for the progress bar); else None."""
    if not isinstance(source, (str, Path)):
        return len(source) if isinstance(source, Sized) else None
    path = Path(source)
    if path.is_dir():
        return sum(1 for _ in _text_files(path))
    if path.suffix.lower() in (".jsonl", ".ndjson") and path.is_file():
        with path.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    return None


def _from_items(
    items: Iterable[Item | InvalidRequest], place: str, text: str | None, id: str | None
) -> Iterator[Document]:
    for number, item in enumerate(items):
        document = _document(item, number, f"{place} {number + 1}", text, id)
        if isinstance(document, InvalidRequest):
            if number == 0:
                raise document
            named = _identity(item, id) if isinstance(item, Mapping) else None
            document = Document(number if named is None else named, "", str(document))
        yield document


def _document(item: object, number: int, place: str, text: str | None, id: str | None) -> Document | InvalidRequest:
    match item:
        case Document() | InvalidRequest():
            return item
        case str():
            return Document(number, item)
        case Mapping():
            found = _text(item, place, text)
            if isinstance(found, InvalidRequest):
                return found
            if id is not None and id not in item:
                return InvalidRequest(f"{place} has no field {id!r}; its fields are {_listed(item)}", param="id")
            named = _identity(item, id)
            return Document(number if named is None else named, found)
    return InvalidRequest(
        f"{place} is a {type(item).__name__}; allowed are strings, mappings and Documents", param="input"
    )


def _text(fields: Mapping[str, object], place: str, wanted: str | None) -> str | InvalidRequest:
    strings = {name: value for name, value in fields.items() if isinstance(value, str)}
    if wanted is not None:
        if wanted in strings:
            return strings[wanted]
        return InvalidRequest(
            f"{place} has no text in a field {wanted!r}; its text fields are {_listed(strings)}: give --text",
            param="text",
        )
    for name in TEXT_FIELDS:
        if name in strings:
            return strings[name]
    candidates = [name for name in strings if name not in ID_FIELDS]
    if len(candidates) == 1:
        return strings[candidates[0]]
    return InvalidRequest(
        f"{place}: which field is the document? Its text fields are {_listed(strings)}: name one with --text",
        param="text",
    )


def _identity(fields: Mapping[str, object], wanted: str | None) -> str | int | None:
    for name in (wanted,) if wanted is not None else ID_FIELDS[:4]:
        value = fields.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return value
    return None


def _not_utf8(text: str, place: str) -> str:
    """A fault, if ``text`` was decoded with ``surrogateescape`` from other bytes; else nothing."""
    wrong = next((letter for letter in text if "\udc80" <= letter <= "\udcff"), None)
    if wrong is None:
        return ""
    return f"{place} is not UTF-8: it holds the byte 0x{ord(wrong) - 0xDC00:02x}; convert it (for example with iconv)"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _json_lines(path: Path) -> Iterator[Item | InvalidRequest]:
    needed = "each line must be one JSON object or string"
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield InvalidRequest(f"{path}, line {number} is not JSON ({error}): {needed}", param="input")
                continue
            if isinstance(value, (str, dict)):
                yield value
            else:
                yield InvalidRequest(f"{path}, line {number} is a {type(value).__name__}: {needed}", param="input")


def _csv_rows(path: Path) -> Iterator[Item | InvalidRequest]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # Fields of whole documents exceed the module's own limit of 128 KiB.
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        rows = csv.DictReader(lines, delimiter=delimiter)
        number = 0
        while True:
            number += 1
            try:
                row = next(rows, None)
            except csv.Error as error:
                yield InvalidRequest(f"{path}, row {number} is not CSV ({error})", param="input")
                continue
            if row is None:
                return
            fields = {name: value for name, value in row.items() if name is not None and value is not None}
            fault = _not_utf8("".join((*fields, *map(str, fields.values()))), f"{path}, row {number}")
            yield InvalidRequest(fault, param="input") if fault else fields


def _text_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".txt", ".md") and path.is_file())


def _from_folder(folder: Path) -> Iterator[Document]:
    found = False
    for path in _text_files(folder):
        found = True
        yield _from_text(path, path.relative_to(folder).as_posix())
    if not found:
        raise InvalidRequest(f"{folder} holds no .txt or .md file", param="input")


def _from_text(path: Path, id: str) -> Document:
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    except OSError as error:
        return Document(id, "", f"{path} cannot be read: {error.strerror}")
    return Document(id, text, _not_utf8(text, str(path)))
