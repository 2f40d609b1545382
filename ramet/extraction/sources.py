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
    """One input. ``id`` is the input's own, else its number from 0 (or the file's name)."""

    id: str | int
    text: str


def read(source: Source, *, text: str | None = None, id: str | None = None) -> Iterator[Document]:
    """Documents of ``source``, in its order.

    text, id: names of the fields that hold them (of JSON objects and CSV rows). Without ``text`` the first field named
    like one of ``TEXT_FIELDS`` is taken, else the only field that holds a string.
    Raises InvalidRequest: no such file, a line that is not JSON, no text field found; the message names the place.
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
        yield Document(path.name, _read_text(path))
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


def _from_items(items: Iterable[Item], place: str, text: str | None, id: str | None) -> Iterator[Document]:
    for number, item in enumerate(items):
        if isinstance(item, Document):
            yield item
        elif isinstance(item, str):
            yield Document(number, item)
        elif isinstance(item, Mapping):
            yield _document(item, number, f"{place} {number + 1}", text, id)
        else:
            raise InvalidRequest(
                f"{place} {number + 1} is a {type(item).__name__}; allowed are strings, mappings and Documents",
                param="input",
            )


def _document(fields: Mapping[str, object], number: int, place: str, text: str | None, id: str | None) -> Document:
    return Document(_identity(fields, number, place, id), _text(fields, place, text))


def _text(fields: Mapping[str, object], place: str, wanted: str | None) -> str:
    strings = {name: value for name, value in fields.items() if isinstance(value, str)}
    if wanted is not None:
        if wanted not in strings:
            raise InvalidRequest(
                f"{place} has no text in a field {wanted!r}; its text fields are {_listed(strings)}: give --text",
                param="text",
            )
        return strings[wanted]
    for name in TEXT_FIELDS:
        if name in strings:
            return strings[name]
    candidates = [name for name in strings if name not in ID_FIELDS]
    if len(candidates) == 1:
        return strings[candidates[0]]
    raise InvalidRequest(
        f"{place}: which field is the document? Its text fields are {_listed(strings)}: name one with --text",
        param="text",
    )


def _identity(fields: Mapping[str, object], number: int, place: str, wanted: str | None) -> str | int:
    if wanted is not None and wanted not in fields:
        raise InvalidRequest(f"{place} has no field {wanted!r}; its fields are {_listed(fields)}", param="id")
    names = (wanted,) if wanted is not None else ID_FIELDS[:4]
    for name in names:
        value = fields.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return value
    return number


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _json_lines(path: Path) -> Iterator[Item]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise InvalidRequest(
                    f"{path}, line {number} is not JSON ({error}): each line must be one JSON object or string",
                    param="input",
                ) from error
            if not isinstance(value, (str, dict)):
                raise InvalidRequest(
                    f"{path}, line {number} is a {type(value).__name__}: each line must be one JSON object or string",
                    param="input",
                )
            yield value


def _csv_rows(path: Path) -> Iterator[Item]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    # Fields of whole documents exceed the module's own limit of 128 KiB.
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        for row in csv.DictReader(lines, delimiter=delimiter):
            yield {name: value for name, value in row.items() if name is not None and value is not None}


def _text_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".txt", ".md") and path.is_file())


def _from_folder(folder: Path) -> Iterator[Document]:
    found = False
    for path in _text_files(folder):
        found = True
        yield Document(path.relative_to(folder).as_posix(), _read_text(path))
    if not found:
        raise InvalidRequest(f"{folder} holds no .txt or .md file", param="input")


def _read_text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")
