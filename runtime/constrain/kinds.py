"""The grammar of each kind of specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from ramet.runtime.constrain.grammar import Grammar
from ramet.runtime.constrain.lark_text import demands
from ramet.runtime.constrain.scanner import WatchPlan
from ramet.runtime.constrain.schema import Order, write
from ramet.runtime.constrain.schema.graph import DYNAMIC
from ramet.runtime.constrain.strings.chars import CharSet
from ramet.runtime.constrain.strings.lang import Lang, literals
from ramet.runtime.constrain.strings.meaning import full
from ramet.runtime.constrain.strings.tree import PatternError, PatternUnsupported
from ramet.runtime.constrain.substrings import Substring
from ramet.runtime.protocol.errors import InvalidConstraint, UnsupportedConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

KINDS = ("json_schema", "regex", "choice", "lark", "gbnf", "structural")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``options`` of a ConstraintSpec, as JSON.

    ``order``: keys of objects as the schema gives them (``given``), or in any order (``any``: objects of up to 64 named
    keys; larger ones keep the order). ``documents``: schemas by URI that references may point to. ``substrings``:
    string constants of the schema, each of which stands for the strings that a text holds. ``close_after``: how many
    ids of a JSON value may be generated before it is brought to a close (0: no bound).
    """

    order: Order = "given"
    documents: Mapping[str, object] = {}
    substrings: Mapping[str, Substring] = {}
    close_after: Annotated[int, msgspec.Meta(ge=0)] = 0


class Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text that opens, a JSON Schema for what stands between, text that closes."""

    begin: str
    end: str
    schema: object = True


class Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text of a ``structural`` specification, as JSON: free text in which tagged values may stand.

    ``triggers``: as soon as one is written, a tag whose ``begin`` starts with it must follow; by default each tag's own
    ``begin``. ``required``: at least one tag. ``one``: the text ends with the first tag.
    """

    tags: list[Tag]
    triggers: list[str] = []
    required: bool = False
    one: bool = False


def options_of(spec: ConstraintSpec) -> Options:
    if not spec.options:
        return Options()
    try:
        return msgspec.json.decode(spec.options, type=Options)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidConstraint(
            f"options of the constraint: {error}; possible are order, documents, substrings and close_after"
        ) from None


def regex_language(pattern: str) -> Lang:
    """Texts that the pattern matches from end to end (Python's syntax, as far as it is regular)."""
    try:
        return full(pattern, "python")
    except PatternError as error:
        raise InvalidConstraint(f"{pattern!r} is no regular expression: {error}") from None
    except PatternUnsupported as error:
        raise UnsupportedConstraint(f"regex {pattern!r} is not supported: {error}", keyword="regex") from None
    except RecursionError:
        raise InvalidConstraint("the regular expression is nested too deeply") from None


def choices(text: str) -> list[str]:
    """The strings of a ``choice`` specification."""
    given = decode(text)
    if not isinstance(given, list) or not given or not all(isinstance(item, str) for item in given):
        raise InvalidConstraint("a choice needs a JSON list with at least one string")
    return given


def decode(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidConstraint(f"the constraint is not JSON: {error}") from None


@dataclass(frozen=True)
class Lowered:
    """``grammar``: the engine's text. ``spelled``: bytes of text that it may force; ``classes``: sets of characters of
    which it may force one. ``plan``: what the matcher has to watch besides."""

    grammar: str
    spelled: frozenset[int] = frozenset()
    plan: WatchPlan | None = None
    lang: Lang | None = None
    """The texts of a choice or regex."""
    classes: frozenset[CharSet] = frozenset()
    close_after: int = 0
    """See ``Options``."""


_WHITESPACE = ("compact", "flexible")


def lowered(spec: ConstraintSpec) -> Lowered:
    """Raises a kind of ConstraintError."""
    if spec.whitespace not in _WHITESPACE:
        raise InvalidConstraint(f"whitespace is {spec.whitespace!r}; possible are {' and '.join(_WHITESPACE)}")
    grammar = Grammar(flexible=spec.whitespace == "flexible")
    plan: WatchPlan | None = None
    lang: Lang | None = None
    close_after = 0
    if spec.kind == "json_schema":
        options = options_of(spec)
        close_after = options.close_after
        for constant, substring in options.substrings.items():
            grammar.stand_for(constant, substring)
        dynamic = any(keyword in spec.text for keyword in DYNAMIC)
        start, plan = write(grammar, decode(spec.text), options.order, options.documents, dynamic=dynamic)
    elif spec.kind == "regex":
        lang = regex_language(spec.text)
        start = grammar.plain(lang)
    elif spec.kind == "choice":
        lang = literals(choices(spec.text))
        start = grammar.plain(lang)
    elif spec.kind == "structural":
        start = _structural(grammar, spec)
    elif spec.kind == "lark":
        return Lowered(spec.text, *_demands(spec.text))
    elif spec.kind == "gbnf":
        text = _gbnf(spec.text)
        return Lowered(text, *_demands(text))
    else:
        raise InvalidConstraint(f"constraint kind {spec.kind!r} is not known: use one of {', '.join(KINDS)}")
    spelled, classes = frozenset(grammar.spelled), frozenset(grammar.classes)
    return Lowered(grammar.finish(start), spelled, plan, lang, classes, close_after)


def _demands(text: str) -> tuple[frozenset[int], None, None, frozenset[CharSet]]:
    spelled, classes = demands(text)
    return spelled, None, None, classes


def _gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the converter raises whatever it comes across
        raise InvalidConstraint(f"the GBNF grammar does not parse: {error}") from None


def _structural(grammar: Grammar, spec: ConstraintSpec) -> str:
    try:
        structure = msgspec.json.decode(spec.text, type=Structure)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidConstraint(f"a structural constraint is JSON with tags: {error}") from None
    if not structure.tags or not all(tag.begin and tag.end for tag in structure.tags):
        raise InvalidConstraint("a structural constraint needs tags, each with a begin and an end that are not empty")
    options = options_of(spec)
    triggers = structure.triggers or list(dict.fromkeys(tag.begin for tag in structure.tags))
    parts = []
    for trigger in triggers:
        bodies = []
        for tag in structure.tags:
            if tag.begin.startswith(trigger):
                value, plan = write(grammar, tag.schema, options.order, options.documents)
                if plan is not None:
                    raise UnsupportedConstraint(
                        "uniqueItems cannot be enforced inside of tags, but for short lists of scalars",
                        keyword="uniqueItems",
                    )
                rest = tag.begin[len(trigger) :]
                opening = f"{grammar.literal(rest)} " if rest else ""
                bodies.append(f"{opening}{value} {grammar.literal(tag.end)}")
        if not bodies:
            raise InvalidConstraint(f"no tag begins with the trigger {trigger!r}")
        head = grammar.lazy(trigger)
        parts.append(f"{head} ({' | '.join(bodies)})")
    tags = " | ".join(parts)
    if structure.one:
        return grammar.rule(f"({tags})" if structure.required else f"({tags}) | {grammar.rest()}")
    count = "+" if structure.required else "*"
    return grammar.rule(f"({tags}){count} {grammar.rest()}")
