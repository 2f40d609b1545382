"""JSON Schema to rules of a grammar that accept the same values, or a refusal by keyword and pointer."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.runtime.constrain.grammar import Grammar
from ramet.runtime.constrain.scanner import WatchPlan
from ramet.runtime.constrain.schema.context import Context
from ramet.runtime.constrain.schema.emit import Emitter
from ramet.runtime.constrain.schema.emit_object import Order
from ramet.runtime.constrain.schema.graph import Graph, Json
from ramet.runtime.constrain.schema.values import Values
from ramet.runtime.constrain.schema.watch import watch


def write(
    grammar: Grammar,
    schema: Json,
    order: Order,
    documents: Mapping[str, Json] | None = None,
    *,
    dynamic: bool | None = None,
) -> tuple[str, WatchPlan | None]:
    """Add the rules of ``schema`` to the grammar: the symbol that stands for a value of it, and what is to be watched
    in the text besides. ``documents``: other schemas by URI, for references. ``dynamic``: see
    ``Graph``. Raises a kind of ConstraintError."""
    values = Values(Context(Graph(schema, documents, dynamic=dynamic)))
    emitter = Emitter(values, grammar, order)
    symbol = emitter.run()
    plan = watch(values, emitter.unique)
    values.done()
    return symbol, plan


def lower(
    schema: Json, *, flexible: bool = False, order: Order = "given", documents: Mapping[str, Json] | None = None
) -> str:
    """The text of a whole grammar."""
    grammar = Grammar(flexible=flexible)
    return grammar.finish(write(grammar, schema, order, documents)[0])
