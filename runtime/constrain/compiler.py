"""From a specification to a compiled constraint."""

from __future__ import annotations

import json
from weakref import WeakKeyDictionary

import msgspec
from ramet.runtime.constrain.base import CompiledConstraint
from ramet.runtime.constrain.engine import EngineConstraint
from ramet.runtime.constrain.schema import normalise
from ramet.runtime.constrain.vocabulary import TokenizerLike, Vocabulary, build_vocabulary
from ramet.runtime.protocol.errors import ConstraintTooComplex, InvalidConstraint
from ramet.runtime.protocol.messages import ConstraintSpec

KINDS = ("json_schema", "regex", "choice", "lark", "gbnf", "structural")


class Compiler:
    """Compiles for one tokeniser."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self.vocabulary: Vocabulary = build_vocabulary(tokenizer)

    def compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        """Raises a kind of ``ConstraintError``."""
        grammar = self._grammar(spec)
        return engine_constraint(grammar, self.vocabulary)

    def _grammar(self, spec: ConstraintSpec) -> str:
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import gbnf_to_lark

        if spec.kind == "json_schema":
            return normalise(_decode(spec.text), flexible=spec.whitespace == "flexible")
        if spec.kind == "regex":
            return LLMatcher.grammar_from_regex(spec.text.removeprefix("^").removesuffix("$"))
        if spec.kind == "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(c) for c in choices(spec.text)))
        if spec.kind == "lark":
            return LLMatcher.grammar_from_lark(spec.text)
        if spec.kind == "gbnf":
            return LLMatcher.grammar_from_lark(gbnf_to_lark(spec.text))
        raise InvalidConstraint(f"constraint kind {spec.kind!r} is not known: use one of {', '.join(KINDS)}")


def choices(text: str) -> list[str]:
    """The strings of a ``choice`` specification."""
    given = _decode(text)
    if not isinstance(given, list) or not given or not all(isinstance(item, str) for item in given):
        raise InvalidConstraint("a choice needs a JSON list with at least one string")
    return given


def engine_constraint(grammar: str, vocabulary: Vocabulary) -> EngineConstraint:
    from llguidance import LLMatcher

    template = LLMatcher(vocabulary.engine, grammar, log_level=0)
    if template.is_error():
        message = template.get_error()
        if "too" in message and ("complex" in message or "large" in message):
            raise ConstraintTooComplex(f"the constraint is too complex: {message}")
        raise InvalidConstraint(f"the constraint does not compile: {message}")
    return EngineConstraint(template, vocabulary, size=4096 + 16 * len(grammar))


def _decode(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidConstraint(f"the constraint is not JSON: {error}") from None


_compilers: WeakKeyDictionary[TokenizerLike, Compiler] = WeakKeyDictionary()


def compiler_for(tokenizer: TokenizerLike) -> Compiler:
    """One compiler per tokeniser object, as long as that lives."""
    found = _compilers.get(tokenizer)
    if found is None:
        found = _compilers[tokenizer] = Compiler(tokenizer)
    return found


def compile(spec: ConstraintSpec, tokenizer: TokenizerLike) -> CompiledConstraint:
    """Compile ``spec`` for the tokeniser. Raises InvalidConstraint, UnsupportedConstraint (naming keyword and JSON
    pointer) or ConstraintTooComplex; bounds on time and memory are the business of ``bounded``."""
    return compiler_for(tokenizer).compile(spec)
