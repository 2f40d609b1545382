"""Real documents that every machine has: metadata and descriptions of the installed Python distributions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import Distribution, distributions
from typing import cast

from ramet.extraction.sources import Document

MIN_DESCRIPTION = 200
"""Characters; where a description is shorter, the summary stands in for it."""

_FIELDS = {
    "Name": "name",
    "Version": "version",
    "Summary": "summary",
    "Author": "author",
    "License-Expression": "license",
    "License": "license",
    "Keywords": "keywords",
}
_KEYS = tuple(dict.fromkeys(_FIELDS.values()))
_MAX_FIELD = 200


@dataclass(frozen=True)
class Package:
    """One installed distribution: what its metadata says, and the document made of it."""

    name: str
    version: str
    document: Document
    has_description: bool


def normalised(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(limit: int, found: Iterable[Distribution] | None = None) -> list[Package]:
    """Up to ``limit`` installed distributions (or those of ``found``), each once: the first by name. Where
    ramet itself is among them it stands in front, for the record that is shown as it comes."""
    packages: dict[str, Package] = {}
    for distribution in distributions() if found is None else found:
        package = _package(distribution)
        if package is not None:
            packages.setdefault(normalised(package.name), package)
    return [packages[name] for name in sorted(sorted(packages)[:limit], key=lambda name: name != "ramet")]


def _package(distribution: Distribution) -> Package | None:
    # Typed by a narrow protocol, and a mail message in every version of Python.
    metadata = cast(Message, distribution.metadata)
    name, version = metadata.get("Name"), metadata.get("Version")
    if not name or not version:  # the remains of a removed distribution
        return None
    given = {
        key: _one_line(value)
        for field, key in reversed(_FIELDS.items())
        if (value := metadata.get(field)) and value.strip().upper() != "UNKNOWN"
    }
    lines = [f"{key} = {json.dumps(given[key], ensure_ascii=False)}" for key in _KEYS if key in given]
    description = _plain(str(metadata.get("Description") or metadata.get_payload() or ""))
    has_description = len(description) >= MIN_DESCRIPTION
    body = description if has_description else _one_line(metadata.get("Summary") or "No description.")
    return Package(name, version, Document(name, "\n".join(["[project]", *lines, "", body])), has_description)


def _one_line(value: str) -> str:
    """Some packages put their whole licence text into one field."""
    return " ".join(value.split())[:_MAX_FIELD]


def _plain(description: str) -> str:
    """Without badges, pictures and HTML, which say nothing about a package and take many tokens."""
    text = re.sub(r"<!--.*?-->", "", description, flags=re.DOTALL)
    text = re.sub(r"<[a-zA-Z/][^>]{0,500}>", "", text)
    text = re.sub(r"\[!\[[^\]]*\]\([^)]*\)\]\([^)]*\)", "", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"(?m)^\.\. (image|figure)::.*\n(?:[ \t]+:.*\n)*", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    lines = [line.rstrip() for line in text.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
