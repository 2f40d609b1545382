"""What a record must look like: a JSON Schema, given as a mapping, as JSON text, or as a pydantic model."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from pydantic import BaseModel, ValidationError

from ramet.extraction.closing import closed
from ramet.extraction.optional import Optional, with_optional, without_nulls
from ramet.extraction.verbatim import Binding
from ramet.runtime.protocol.errors import InvalidRequest

SchemaSource: TypeAlias = "type[BaseModel] | Mapping[str, object] | str"


@dataclass(frozen=True)
class Target:
    """``text``: the JSON Schema that records are held to, property order kept. ``model``: validates what a mask cannot,
    where there is one. ``given``: the schema before its optional fields were treated (see ``optional.py``)."""

    text: str
    model: type[BaseModel] | None = None
    given: str = ""

    @cached_property
    def binding(self) -> Binding:
        """Its fields that are copied from the document."""
        return Binding(json.loads(self.text))

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def refusal(self, text: str) -> str | None:
        """Why the model's own validators refuse this JSON text, in one line; None: they do not."""
        if self.model is None:
            return None
        try:
            self.model.model_validate_json(text)
        except ValidationError as error:
            return "; ".join(f"{_place(entry['loc'])}: {entry['msg']}" for entry in error.errors())
        return None

    def record(self, value: object) -> object:
        """``value`` as it goes out: without the nulls that only say that a field is not there."""
        return without_nulls(json.loads(self.given), value) if self.given else value


def target(source: SchemaSource, optional: Optional = "model") -> Target:
    """``source`` as a Target; its objects are closed (see ``closing``). Raises InvalidRequest where it is no schema."""
    if isinstance(source, type) and issubclass(source, BaseModel):
        return _target(source.model_json_schema(), optional, source)
    if isinstance(source, Mapping):
        return _target(source, optional)
    if isinstance(source, str):
        try:
            parsed = json.loads(source)
        except ValueError as error:
            raise InvalidRequest(f"the schema is not JSON: {error}", param="schema") from error
        if not isinstance(parsed, (dict, bool)):
            raise InvalidRequest("the schema must be a JSON object (or true / false)", param="schema")
        return _target(parsed, optional) if isinstance(parsed, dict) else Target(source)
    raise InvalidRequest(
        f"a schema must be a pydantic model, a mapping or JSON text, not a {type(source).__name__}", param="schema"
    )


def _target(schema: Mapping[str, object], optional: Optional, model: type[BaseModel] | None = None) -> Target:
    given = closed(schema)
    text = json.dumps(with_optional(given, optional), ensure_ascii=False)
    return Target(text, model, json.dumps(given, ensure_ascii=False) if optional == "null" else "")


def load(argument: str, optional: Optional = "model") -> Target:
    """The schema that a command line names: a file of JSON Schema, or ``file.py:Model`` (a pydantic model).

    Raises InvalidRequest: no such file, no such model in it, or the file's own error.
    """
    name, colon, attribute = argument.rpartition(":")
    if colon and name.endswith(".py"):
        found = getattr(load_module(Path(name)), attribute, None)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return target(found, optional)
        if isinstance(found, Mapping):
            return target(found, optional)
        raise InvalidRequest(
            f"{name} has no pydantic model (or mapping) named {attribute!r}; it has {_models(Path(name))}",
            param="schema",
        )
    path = Path(argument)
    if path.suffix == ".py":
        raise InvalidRequest(
            f"{argument}: say which model of it, as {argument}:Model; it has {_models(path)}", param="schema"
        )
    try:
        return target(path.read_text(encoding="utf-8"), optional)
    except OSError as error:
        raise InvalidRequest(
            f"{argument} cannot be read ({error.strerror}): give a JSON Schema file, or file.py:Model", param="schema"
        ) from error
    except (InvalidRequest, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{argument}: {error}", param="schema") from error


def load_module(path: Path) -> ModuleType:
    """Run a Python file and give it as a module. Its own folder is importable for it, as with ``python file.py``."""
    if not path.is_file():
        raise InvalidRequest(f"{path} is not there: give the path of a Python file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: pydantic looks up forward references in sys.modules.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # it is the user's code: whatever it raises is named
        sys.modules.pop(path.stem, None)
        raise InvalidRequest(f"{path} fails when it is imported: {type(error).__name__}: {error}") from error
    return module


def _models(path: Path) -> str:
    module = load_module(path)
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel
    ]
    return ", ".join(names) or "none"


def _place(location: tuple[int | str, ...]) -> str:
    return "/".join(map(str, location)) or "(whole record)"
