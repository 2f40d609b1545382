"""JSON Schema to an equivalent grammar, or a refusal that names keyword and JSON pointer."""

from ramet.runtime.constrain.schema.emit_object import Order
from ramet.runtime.constrain.schema.normal import lower, write

__all__ = ["Order", "lower", "write"]
