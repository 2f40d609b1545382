"""How `select` picks a choice from the log-probabilities of the choices' tokens.

A method of one's own is any object with ``requires_unconditional_logprobs`` and a call that takes the keywords of
:class:`ChoicesMethod.__call__` and returns a :class:`ChoicesDecision`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TokenEntry = tuple[float, int, "str | None"]
"""(log-probability, token id, text)."""


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """The text of the winner, and what to add to the variable's meta information."""

    decision: str
    meta_info: dict[str, Any] | None = None


class ChoicesMethod(Protocol):
    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Score the choices without their context, too."""

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenEntry]],
        output_token_logprobs: list[list[TokenEntry]],
        unconditional_token_logprobs: list[list[TokenEntry]] | None = None,
    ) -> ChoicesDecision:
        """One entry per choice in each list; output_token_logprobs is empty (nothing is generated)."""


class ChoicesSamplingMethod:
    """Base class for one's own methods (optional: any ChoicesMethod will do)."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Scored:
    """What a method judges by: log-probabilities of each choice's tokens after the context (``given``), their means,
    and after nothing (``alone``)."""

    choices: list[str]
    means: list[float]
    given: list[list[TokenEntry]]
    alone: list[list[TokenEntry]]

    def highest(self, scores: list[float], **more: Any) -> ChoicesDecision:
        """Equal scores: the earlier choice."""
        return ChoicesDecision(self.choices[best(scores)], {"scores": scores, **more})


@dataclass(frozen=True, slots=True)
class _Method:
    rule: Callable[[_Scored], ChoicesDecision]
    requires_unconditional_logprobs: bool = False

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenEntry]],
        output_token_logprobs: list[list[TokenEntry]],
        unconditional_token_logprobs: list[list[TokenEntry]] | None = None,
    ) -> ChoicesDecision:
        alone = unconditional_token_logprobs or []
        return self.rule(_Scored(choices, normalized_prompt_logprobs, input_token_logprobs, alone))


def _sum(entries: Sequence[TokenEntry]) -> float:
    return sum(entry[0] for entry in entries)


def _greedy(scored: _Scored) -> ChoicesDecision:
    """Only the choices with the likeliest next token stay in; one that has run out of tokens goes on with its mean."""
    alive = list(range(len(scored.choices)))
    for position in range(max(map(len, scored.given))):
        at = {i: row[position][0] if position < len(row := scored.given[i]) else scored.means[i] for i in alive}
        top = max(at.values())
        alive = [i for i in alive if at[i] == top]
        if len(alive) == 1:
            break
    return ChoicesDecision(scored.choices[alive[0]], {"greedy_survivors": [scored.choices[i] for i in alive]})


def _unconditional(scored: _Scored) -> ChoicesDecision:
    pairs = zip(scored.given, scored.alone, strict=True)
    scores = [(_sum(given) - _sum(alone)) / max(1, len(given)) for given, alone in pairs]
    return scored.highest(scores, normalized_unconditional_prompt_logprobs=scores)


token_length_normalized: ChoicesMethod = _Method(lambda scored: scored.highest(scored.means))
"""Highest mean log-probability per token (default)."""

sum_logprobs: ChoicesMethod = _Method(lambda scored: scored.highest([_sum(entries) for entries in scored.given]))
"""Highest log-probability of the whole choice."""

greedy_token_selection: ChoicesMethod = _Method(_greedy)
"""Token by token, the likeliest."""

unconditional_likelihood_normalized: ChoicesMethod = _Method(_unconditional, requires_unconditional_logprobs=True)
"""Mean over a choice's tokens of log p(token | context) - log p(token | nothing before the choice)."""

METHODS: dict[str, ChoicesMethod] = {
    "token_length_normalized": token_length_normalized,
    "greedy_token_selection": greedy_token_selection,
    "unconditional_likelihood_normalized": unconditional_likelihood_normalized,
    "sum": sum_logprobs,
}


def as_method(value: ChoicesMethod | str | None) -> ChoicesMethod:
    """A method from its name, or the default for None."""
    if value is None:
        return token_length_normalized
    if isinstance(value, str):
        if value not in METHODS:
            raise ValueError(f"choices_method must be one of {', '.join(METHODS)}, or a method object; got {value!r}")
        return METHODS[value]
    return value


def best(scores: Sequence[float]) -> int:
    """Index of the highest score: the first of equals; NaN never wins."""
    ranked = [-math.inf if math.isnan(score) else score for score in scores]
    return ranked.index(max(ranked))
