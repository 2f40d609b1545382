"""Objects while they are written: partial snapshots of JSON text that comes in pieces, and items of an array as soon as
they are whole. The pieces may come from anywhere: ``stream_record``, a program's stream, server-sent events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, create_model

from ramet.runtime.frontend.partial_json import read

M = TypeVar("M", bound=BaseModel)


def snapshots(pieces: Iterable[str]) -> Iterator[object]:
    """The value so far, each time there is more of it; each snapshot is a beginning of the next: strings and arrays
    grow at their end, objects gain properties, what was there stays. The last one is the whole value."""
    text, last = "", object()
    for piece in pieces:
        text += piece
        value = read(text).value
        if value is not None and value != last:
            last = value
            yield value


def array_items(pieces: Iterable[str], field: str | None = None) -> Iterator[object]:
    """The items of an array, each as soon as it is whole: of the array ``field`` of an object, or of the value itself.

    Where ``field`` is not given and the value is an object, it is the object's first array.
    """
    text, given = "", 0
    for piece in pieces:
        text += piece
        found = read(text)
        name = _array(found.value, field)
        whole = [value for path, value in found.items if path[:-1] == (() if name is None else (name,))]
        yield from whole[given:]
        given = max(given, len(whole))


def partial_model(model: type[M]) -> type[BaseModel]:
    """``model`` with every field optional (None until it is there), models inside of it as well; without validators:
    what is not whole can't be held to them."""
    return _Partials().of(model)


class TypedSnapshots(Generic[M]):
    """``for record in TypedSnapshots(Model, pieces)``: snapshots as instances of ``partial_model(Model)``."""

    def __init__(self, model: type[M], pieces: Iterable[str]) -> None:
        self._model = partial_model(model)
        self._pieces = pieces

    def __iter__(self) -> Iterator[BaseModel]:
        for value in snapshots(self._pieces):
            yield self._model.model_validate(value)


class _Partials:
    """Partial models by model, so that recursive ones end."""

    def __init__(self) -> None:
        self._made: dict[type[BaseModel], type[BaseModel] | None] = {}

    def of(self, model: type[BaseModel]) -> type[BaseModel]:
        found = self._made.get(model)
        if found is not None:
            return found
        if model in self._made:  # inside of itself
            return BaseModel
        self._made[model] = None
        fields: dict[str, Any] = {
            field.alias or name: (Union[self._loose(field.annotation), None], None)  # noqa: UP007
            for name, field in model.model_fields.items()
        }
        made: type[BaseModel] = create_model(f"Partial{model.__name__}", __config__=ConfigDict(extra="allow"), **fields)
        self._made[model] = made
        return made

    def _loose(self, annotation: Any) -> Any:
        """The type of a value that may not be whole: models become partial, everything else may be anything."""
        origin = get_origin(annotation)
        if isinstance(annotation, type) and origin is None and issubclass(annotation, BaseModel):
            inner = self.of(annotation)
            return Any if inner is BaseModel else inner
        if origin in (list, Sequence):
            return list[self._loose(get_args(annotation)[0])]  # type: ignore[misc]
        if origin in (dict, Mapping):
            return dict[str, self._loose(get_args(annotation)[1])]  # type: ignore[misc]
        if origin in (Union, UnionType):
            models = [part for part in get_args(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
            return self._loose(models[0]) if len(models) == 1 else Any
        return Any


def _array(value: object, field: str | None) -> str | None:
    """Name of the array whose items are wanted; None if it is the value itself."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, list) and field in (None, name):
                return str(name)
    return None if isinstance(value, list) else field
