"""Objects while they are written: with ``stream_options.include_partial``, each chunk of a JSON answer holds the value
so far, and the items of arrays that have become whole."""

from __future__ import annotations

import json
from collections import defaultdict

import orjson
from ramet.runtime.frontend.partial_json import pointer, read
from ramet.runtime.protocol.messages import ConstraintSpec

from .errors import bad_request
from .fields import GenerationBody


class ObjectStream:
    """Reads the text of the choices of one stream."""

    def __init__(self) -> None:
        self._texts: defaultdict[int, str] = defaultdict(str)
        self._given: defaultdict[int, int] = defaultdict(int)

    def feed(self, choice: int, text: str) -> bytes:
        """Further fields of the chunk, each after a comma: ``partial``, a beginning of every later one, and
        ``finished_items`` where there are new ones."""
        self._texts[choice] += text
        found = read(self._texts[choice])
        more = b',"partial":' + _json(found.value)
        items = found.items[self._given[choice] :]
        if items:
            self._given[choice] = len(found.items)
            listed = [{"path": pointer(path), "value": value} for path, value in items]
            more += b',"finished_items":' + _json(listed)
        return more


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs
        return json.dumps(value).encode()


def object_stream(body: GenerationBody, spec: ConstraintSpec | None, *, tools: bool) -> ObjectStream | None:
    """What ``body.stream_options`` ask for. Raises HttpError where the answer is not bound to be JSON."""
    if body.stream_options is None or not body.stream_options.include_partial:
        return None
    if not body.stream:
        raise bad_request("stream_options.include_partial needs stream: true", "stream_options")
    if spec is None or spec.kind != "json_schema" or tools:
        raise bad_request(
            "stream_options.include_partial needs an answer that is JSON: give a response_format of type json_schema "
            "or json_object, and no tools",
            "stream_options",
        )
    return ObjectStream()
