"""From a specification to a compiled constraint."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from ramet.runtime.constrain.base import CompiledConstraint
from ramet.runtime.constrain.engine import EngineConstraint
from ramet.runtime.constrain.kinds import Lowered, lowered
from ramet.runtime.constrain.lanes import lane_of
from ramet.runtime.constrain.ready import KIND, Ready, from_spec
from ramet.runtime.constrain.scanner import WatchPlan, root_of
from ramet.runtime.constrain.schema.formats import ENFORCED, language
from ramet.runtime.constrain.strings.wire import decode, encode
from ramet.runtime.constrain.table import TableConstraint, TableStore
from ramet.runtime.constrain.vocabulary import TokenizerLike, Vocabulary, build_vocabulary
from ramet.runtime.protocol.errors import (
    ConstraintCrashed,
    ConstraintError,
    ConstraintTooComplex,
    InvalidConstraint,
    UnsupportedConstraint,
)
from ramet.runtime.protocol.messages import ConstraintSpec
from ramet.runtime.store import default_cache

STEP_FUEL = 500_000
"""Work that the engine's lexer may do in one step, in its own unit: some 35 ms. Its default is a bit low for patterns
with many bounded repetitions."""

RULES = 500_000
"""Bound of the symbols of a grammar (the engine's default)."""


_SPELLERS = {"json_schema": "const", "structural": "tags"}
"""What asks for literal text, by kind of specification; of others it is the specification itself."""


class Compiler:
    """Compiles for one tokeniser. ``tables``: folder in which tables of the table lane are kept; None: nowhere."""

    def __init__(self, tokenizer: TokenizerLike, tables: Path | None = None) -> None:
        self._tables = TableStore(tables)
        self.vocabulary: Vocabulary = build_vocabulary(tokenizer)
        _ = self.vocabulary.tokens  # sorted once, better now than in a request, and so are the formats read
        for name in ENFORCED:
            language(name)

    def compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        """Raises a kind of ``ConstraintError``."""
        return self.build(from_spec(spec) if spec.kind == KIND else self.lower(spec))

    def lower(self, spec: ConstraintSpec) -> Ready:
        """All that can be done without the engine. Raises a kind of ``ConstraintError``."""
        try:
            with _no_collection():
                form = lowered(spec)
        except RecursionError:
            raise ConstraintTooComplex("the constraint is nested too deeply") from None
        except ConstraintError:
            raise
        except Exception as error:  # a fault of ours: the request fails, the process does not
            raise ConstraintCrashed(f"the constraint could not be read: {type(error).__name__}: {error}") from error
        self._check_spelling(spec, form)
        if form.lang is not None and lane_of(spec, form.lang) == "table":
            return Ready("table", lang=encode(form.lang))
        return Ready("engine", form.grammar, form.plan, close_after=form.close_after)

    def build(self, ready: Ready) -> CompiledConstraint:
        """Raises a kind of ``ConstraintError``."""
        if ready.lane == "table" and ready.lang is not None:
            return TableConstraint(self._tables.get(decode(ready.lang), self.vocabulary), self.vocabulary)
        return engine_constraint(ready.grammar, ready.plan, self.vocabulary, ready.close_after)

    def _check_spelling(self, spec: ConstraintSpec, form: Lowered) -> None:
        """Refuse what asks for text that no tokens spell."""
        unspeakable = sorted(form.spelled & self.vocabulary.missing)
        if unspeakable:
            raise UnsupportedConstraint(
                f"the constraint asks for text with byte 0x{unspeakable[0]:02X}, which no token of the model can spell",
                keyword=_SPELLERS.get(spec.kind, spec.kind),
            )
        for each in form.classes:
            if each and not each - self.vocabulary.unspeakable:
                raise UnsupportedConstraint(
                    f"the constraint asks for a character like U+{each.ranges[0][0]:04X}, which no token of the model "
                    "can spell",
                    keyword="pattern" if spec.kind == "json_schema" else spec.kind,
                )


def engine_constraint(
    grammar: str, plan: WatchPlan | None, vocabulary: Vocabulary, close_after: int = 0
) -> EngineConstraint:
    """Raises a kind of ``ConstraintError``."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(step_lexer_fuel=STEP_FUEL, max_grammar_size=RULES, verbose_errors=False)
    template = LLMatcher(vocabulary.engine, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits)
    if template.is_error():
        message = template.get_error().split("\n", 1)[0]
        if "panic" in message:
            raise ConstraintCrashed(f"the constraint's engine failed: {message}")
        if "too" in message and any(word in message for word in ("complex", "large", "many", "big", "deep")):
            raise ConstraintTooComplex(f"the constraint is too complex: {message}")
        raise InvalidConstraint(f"the constraint does not compile: {message}")
    place = None if plan is None else root_of(plan)
    return EngineConstraint(template, vocabulary, 4096 + 16 * len(grammar), place, close_after)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Lowering makes many small objects and no garbage: looking for it would take longer than the rest."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def compiler_for(tokenizer: TokenizerLike) -> Compiler:
    """One compiler per tokeniser object; the last few are kept."""
    return _compiler_for(tokenizer)  # type: ignore[arg-type]  # identity makes every object hashable


@lru_cache(maxsize=4)
def _compiler_for(tokenizer: TokenizerLike) -> Compiler:
    return Compiler(tokenizer, default_cache().parent / "tables")


def compile(spec: ConstraintSpec, tokenizer: TokenizerLike) -> CompiledConstraint:
    """Compile ``spec`` for the tokeniser. Raises InvalidConstraint, UnsupportedConstraint (naming keyword and JSON
    pointer), ConstraintTooComplex or ConstraintCrashed; bounds on time and memory are the business of ``bounded``."""
    return compiler_for(tokenizer).compile(spec)
