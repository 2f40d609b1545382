"""What a record lacks that was cut before its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ramet.extraction.optional import resolved
from ramet.runtime.frontend.partial_json import Path


def missing(schema: object, value: object, cut: Path | None) -> list[str]:
    """Names of the fields that the schema requires and ``value`` does not hold whole, in the order of the text: those
    of the innermost object that was cut first, as ``parts/0/weight``, then those of the objects around it.

    cut: where the text ends, see ``partial_json.Partial``."""
    if cut is None:
        return list(_lacking(resolved(schema, schema), value, None, ""))
    levels = []
    part, prefix = resolved(schema, schema), ""
    for depth in range(len(cut) + 1):
        step = cut[depth] if depth < len(cut) else None
        part = _chosen(part, schema, value, step)
        levels.append(list(_lacking(part, value, step, prefix)))
        if step is None:
            if isinstance(value, list) and prefix:  # between two items
                levels.append([prefix[:-1]])
            break
        if depth == len(cut) - 1 and not _holds(value, step):
            levels.append([f"{prefix}{step}"])  # a value that is cut itself
            break
        part, value = _inside(part, schema, step), value[step]  # type: ignore[index]  # it is held
        prefix += f"{step}/"
        if not isinstance(value, (Mapping, list)):
            levels.append([prefix[:-1]])
            break
    return list(dict.fromkeys(name for level in reversed(levels) for name in level))


def _lacking(schema: object, value: object, step: str | int | None, prefix: str) -> Iterator[str]:
    """Required fields of one object that are not there; that of ``step`` has begun."""
    required = schema.get("required") if isinstance(schema, Mapping) else None
    if not isinstance(required, list) or not isinstance(value, Mapping):
        return
    order = schema.get("properties") if isinstance(schema, Mapping) else None
    names = [name for name in order if name in required] if isinstance(order, Mapping) else []
    names += [name for name in required if name not in names]
    for name in names:
        if name not in value and name != step:
            yield f"{prefix}{name}"


def _holds(value: object, step: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, Mapping) and step in value


def _inside(schema: object, root: object, step: str | int) -> object:
    if not isinstance(schema, Mapping):
        return None
    if isinstance(step, int):
        return resolved(schema.get("items"), root)
    properties = schema.get("properties")
    return resolved(properties.get(step) if isinstance(properties, Mapping) else None, root)


def _chosen(schema: object, root: object, value: object, step: str | int | None) -> object:
    """Of a union, the first form that has the field that was cut."""
    options = schema.get("anyOf") if isinstance(schema, Mapping) else None
    for option in options if isinstance(options, list) else ():
        form = resolved(option, root)
        if isinstance(step, int) or step is None:
            kind = "array" if isinstance(value, list) else "object"
            if isinstance(form, Mapping) and form.get("type") == kind:
                return form
        elif _inside(form, root, step) is not None:
            return form
    return schema
