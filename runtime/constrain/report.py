"""What becomes of a schema, keyword by keyword: enforced, proved, watched, annotation or refused."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ramet.runtime.constrain.compiler import compiler_for
from ramet.runtime.constrain.kinds import lowered
from ramet.runtime.constrain.schema.context import ARRAY, NUMBER, OBJECT, STRING, Context
from ramet.runtime.constrain.schema.facts import KEYWORDS
from ramet.runtime.constrain.schema.formats import ENFORCED
from ramet.runtime.constrain.schema.graph import LATEST, Graph, Json, draft_of, escape, is_index, subschemas
from ramet.runtime.constrain.schema.instances import Instances, NoInstance
from ramet.runtime.constrain.schema.scalars import positive
from ramet.runtime.constrain.schema.values import Values
from ramet.runtime.constrain.strings.walk import disjoint
from ramet.runtime.constrain.vocabulary import TokenizerLike
from ramet.runtime.protocol.errors import ConstraintError, UnsupportedConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

REFUSALS = 20
"""Bound of the refusals that one report looks for."""

_IDENTIFIERS = frozenset(
    ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions")
)


@dataclass(frozen=True)
class Entry:
    """``status``: enforced, proved (enforced, and shown to need no complement), watched (enforced by the matcher while
    the text is written), annotation (says nothing about instances, or cannot be checked) or refused."""

    pointer: str
    keyword: str
    status: str
    note: str = ""


@dataclass(frozen=True)
class Report:
    """``error``: why the schema does not compile, empty if it does; the rest is then zero. ``rules``: of the grammar;
    ``values``: different values that the schema speaks about. ``forced_tokens``: of the example's tokens, those that a
    model need not compute. Times in milliseconds, of this run."""

    entries: tuple[Entry, ...]
    error: str = ""
    compile_ms: float = 0.0
    lane: str = ""
    rules: int = 0
    values: int = 0
    example: str = ""
    example_tokens: int = 0
    forced_tokens: int = 0

    @property
    def ok(self) -> bool:
        return not self.error

    def counts(self) -> dict[str, int]:
        """Keywords per status."""
        found: dict[str, int] = {}
        for entry in self.entries:
            found[entry.status] = found.get(entry.status, 0) + 1
        return found


def check(
    schema: Json, tokenizer: TokenizerLike, *, order: str = "given", documents: Mapping[str, Json] | None = None
) -> Report:
    """Compile ``schema`` (a decoded JSON document) and say what becomes of each keyword."""
    refused, error = _refusals(schema, documents)
    entries = tuple(_entries(schema, refused, documents))
    if error is not None:
        return Report(entries, f"{error}")
    options = json.dumps({"order": order, "documents": dict(documents or {})})
    spec = ConstraintSpec("json_schema", json.dumps(schema, ensure_ascii=False), options=options)
    compiler = compiler_for(tokenizer)
    start = time.perf_counter()
    compiled = compiler.compile(spec)
    elapsed = time.perf_counter() - start
    values = Values(Context(Graph(schema, documents)))
    text, tokens, forced = _example(values, spec, tokenizer)
    rules = lowered(spec).grammar.count("\n")
    return Report(entries, "", 1000 * elapsed, compiled.lane, rules, len(values.table), text, tokens, forced)


def _refusals(
    schema: Json, documents: Mapping[str, Json] | None
) -> tuple[dict[str, UnsupportedConstraint], ConstraintError | None]:
    """Every keyword that is refused: each is taken out, and the rest tried again. The first error is the schema's."""
    from ramet.runtime.constrain.schema import lower

    refused: dict[str, UnsupportedConstraint] = {}
    first: ConstraintError | None = None
    rest = copy.deepcopy(schema)
    while len(refused) < REFUSALS:
        try:
            lower(rest, documents=documents)
            break
        except UnsupportedConstraint as error:
            first = first or error
            if error.pointer in refused or not _take_out(rest, error.pointer):
                break
            refused[error.pointer] = error
        except ConstraintError as error:
            first = first or error
            break
    return refused, first


def _take_out(schema: Json, pointer: str) -> bool:
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    place: Json = schema
    for step in steps[:-1]:
        if isinstance(place, dict) and step in place:
            place = place[step]
        elif isinstance(place, list) and is_index(step) and int(step) < len(place):
            place = place[int(step)]
        else:
            return False
    if steps and isinstance(place, dict) and steps[-1] in place:
        del place[steps[-1]]
        return True
    return False


def _entries(
    schema: Json, refused: Mapping[str, UnsupportedConstraint], documents: Mapping[str, Json] | None
) -> Iterator[Entry]:
    proofs = _Proofs(schema, documents)
    alone = draft_of(schema, LATEST) <= 7
    for pointer, node in _nodes(schema, ""):
        for keyword, value in node.items():
            place = f"{pointer}/{escape(keyword)}"
            if alone and "$ref" in node and keyword != "$ref" and keyword not in _IDENTIFIERS:
                yield Entry(place, keyword, "annotation", "ignored beside $ref up to draft 7")
            elif place in refused:
                yield Entry(place, keyword, "refused", str(refused[place]))
            elif keyword in KEYWORDS:
                yield _enforced(place, keyword, value, node, proofs)
            elif keyword not in _IDENTIFIERS:
                yield Entry(place, keyword, "annotation")


def _enforced(place: str, keyword: str, value: Json, node: Mapping[str, Json], proofs: _Proofs) -> Entry:
    if keyword == "format" and value not in ENFORCED:
        return Entry(place, keyword, "annotation", f"format {value!r} is not known")
    if keyword == "oneOf" and proofs.one_of(place, node):
        return Entry(place, keyword, "proved", "no value satisfies two of the alternatives")
    if keyword == "uniqueItems" and value is True and proofs.watched(node):
        return Entry(place, keyword, "watched", "the matcher remembers the items")
    return Entry(place, keyword, "enforced")


def _nodes(schema: Json, pointer: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """All schemas of the document with their pointers."""
    if not isinstance(schema, dict):
        return
    yield pointer, schema
    for child, place in subschemas(schema, pointer):
        yield from _nodes(child, place)


class _Proofs:
    """Questions to the lowering of the whole document."""

    def __init__(self, schema: Json, documents: Mapping[str, Json] | None) -> None:
        self._values: Values | None = None
        try:
            self._values = Values(Context(Graph(schema, documents)))
        except ConstraintError:
            return

    def one_of(self, place: str, schema: Mapping[str, Json]) -> bool:
        if self._values is None:
            return False
        context = self._values.context
        nodes = [node for node in context.graph.by_index if node.schema is schema]
        return bool(nodes) and all(self._disjoint(node.index) for node in nodes)

    def _disjoint(self, index: int) -> bool:
        assert self._values is not None
        context = self._values.context
        children = context.facts(context.graph.by_index[index]).one_of
        for place, left in enumerate(children):
            for right in children[:place]:
                kinds = context.kinds((positive(left), positive(right)))
                if kinds & ~(OBJECT | ARRAY | STRING | NUMBER):
                    return False
                for kind in (OBJECT, ARRAY):
                    if kinds & kind and not context.disjoint(left, right, kind):
                        return False
                for kind, language in ((STRING, context.scalars.strings), (NUMBER, context.scalars.numbers)):
                    if kinds & kind and disjoint(language((positive(left),)), language((positive(right),))) is not True:
                        return False
        return True

    def watched(self, schema: Mapping[str, Json]) -> bool:
        """Whether the items are more than a short list of scalars."""
        from ramet.runtime.constrain.grammar import Grammar
        from ramet.runtime.constrain.schema.emit import Emitter

        if self._values is None:
            return False
        emitter = Emitter(self._values, Grammar(), "given")
        emitter.run()
        return any(shape.unique is not None and shape.unique.schema is schema for shape in emitter.unique)


def _example(values: Values, spec: ConstraintSpec, tokenizer: TokenizerLike) -> tuple[str, int, int]:
    """An example, its tokens, and how many of them are forced."""
    try:
        text = json.dumps(Instances(values).draw(), separators=(",", ":"), ensure_ascii=False)
    except NoInstance:
        return "", 0, 0
    ids = tokenizer.encode(text)
    matcher = compiler_for(tokenizer).compile(spec).matcher()
    forced = place = 0
    while place < len(ids):
        run = matcher.forced()[: len(ids) - place]
        if run and ids[place : place + len(run)] != run:
            return "", 0, 0
        step = run or [ids[place]]
        if not matcher.advance(step):
            return "", 0, 0
        forced += len(run)
        place += len(step)
    return (text, len(ids), forced) if matcher.can_end else ("", 0, 0)
