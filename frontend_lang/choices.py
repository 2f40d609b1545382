"""How `select` picks a choice from the log-probabilities of the choices' tokens.

A method of one's own is any object with ``requires_unconditional_logprobs`` and a call that takes the keywords of
:class:`ChoicesMethod.__call__` and returns a :class:`ChoicesDecision`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
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
class _ByScore:
    """The choice with the highest score; equal scores: the earlier choice."""

    name: str
    mean: bool

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return False

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenEntry]],
        output_token_logprobs: list[list[TokenEntry]],
        unconditional_token_logprobs: list[list[TokenEntry]] | None = None,
    ) -> ChoicesDecision:
        sums = [sum(entry[0] for entry in entries) for entries in input_token_logprobs]
        scores = normalized_prompt_logprobs if self.mean else sums
        return ChoicesDecision(choices[best(scores)], {"scores": scores})


@dataclass(frozen=True, slots=True)
class _Greedy:
    """Token by token: only the choices with the likeliest next token stay in. A choice that has run out of tokens goes
    on with its mean."""

    requires_unconditional_logprobs: bool = field(default=False, init=False)

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenEntry]],
        output_token_logprobs: list[list[TokenEntry]],
        unconditional_token_logprobs: list[list[TokenEntry]] | None = None,
    ) -> ChoicesDecision:
        alive = list(range(len(choices)))
        for position in range(max(map(len, input_token_logprobs))):
            at = {
                i: row[position][0] if position < len(row := input_token_logprobs[i]) else normalized_prompt_logprobs[i]
                for i in alive
            }
            top = max(at.values())
            alive = [i for i in alive if at[i] == top]
            if len(alive) == 1:
                break
        return ChoicesDecision(choices[alive[0]], {"greedy_survivors": [choices[i] for i in alive]})


@dataclass(frozen=True, slots=True)
class _Unconditional:
    """Mean over a choice's tokens of log p(token | context) - log p(token | nothing before the choice)."""

    requires_unconditional_logprobs: bool = field(default=True, init=False)

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenEntry]],
        output_token_logprobs: list[list[TokenEntry]],
        unconditional_token_logprobs: list[list[TokenEntry]] | None = None,
    ) -> ChoicesDecision:
        assert unconditional_token_logprobs is not None
        scores = []
        for given, alone in zip(input_token_logprobs, unconditional_token_logprobs, strict=True):
            scores.append((sum(e[0] for e in given) - sum(e[0] for e in alone)) / max(1, len(given)))
        meta = {"scores": scores, "normalized_unconditional_prompt_logprobs": scores}
        return ChoicesDecision(choices[best(scores)], meta)


token_length_normalized: ChoicesMethod = _ByScore("token_length_normalized", mean=True)
"""Highest mean log-probability per token (default)."""

sum_logprobs: ChoicesMethod = _ByScore("sum", mean=False)
"""Highest log-probability of the whole choice."""

greedy_token_selection: ChoicesMethod = _Greedy()
unconditional_likelihood_normalized: ChoicesMethod = _Unconditional()

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
