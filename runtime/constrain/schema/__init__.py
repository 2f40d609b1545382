"""JSON Schema to an equivalent grammar, or a refusal that names keyword and JSON pointer."""

from ramet.runtime.constrain.schema.normal import normalise

__all__ = ["normalise"]
