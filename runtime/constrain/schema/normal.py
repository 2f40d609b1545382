"""JSON Schema to rules of a grammar that accept the same values, or a refusal by keyword and pointer."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.runtime.constrain.grammar import Grammar
from ramet.runtime.constrain.schema.context import Context
from ramet.runtime.constrain.schema.emit import Emitter
from ramet.runtime.constrain.schema.emit_object import Order
from ramet.runtime.constrain.schema.graph import Graph, Json
from ramet.runtime.constrain.schema.values import Values


def write(grammar: Grammar, schema: Json, order: Order, documents: Mapping[str, Json] | None = None) -> str:
    """Add the rules of ``schema`` to the grammar; the symbol that stands for a value of it.

    ``documents``: other schemas by URI, for references. Raises a kind of ConstraintError.
    """
    return Emitter(Values(Context(Graph(schema, documents))), grammar, order).run()


def lower(
    schema: Json, *, flexible: bool = False, order: Order = "given", documents: Mapping[str, Json] | None = None
) -> str:
    """The text of a whole grammar."""
    grammar = Grammar(flexible=flexible)
    return grammar.finish(write(grammar, schema, order, documents))
