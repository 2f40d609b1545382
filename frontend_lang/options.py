"""Sampling options: of a call, of a run, and the defaults; the first that is given wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from ramet.runtime.protocol.limits import RANGES, Range

if TYPE_CHECKING:
    from .choices import ChoicesMethod
    from .tools import Tool

DEFAULT_MAX_TOKENS = 128


class GenOptions(TypedDict, total=False):
    """Keywords of `gen`, beside its name, lengths and stops and what binds the text: for type checkers."""

    stop_token_ids: Sequence[int] | None
    stop_regex: str | Sequence[str] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    ignore_eos: bool | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None
    choices_method: ChoicesMethod | str | None
    regex: str | None
    grammar: str | None
    whitespace: str | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    priority: int | None
    timeout_s: float | None
    retries: int | None
    heal: bool | None
    max_new_tokens: int | None
    max_completion_tokens: int | None
    tools: Sequence[Callable[..., object] | Tool] | None
    tool_choice: str
    tool_errors: str
    max_rounds: int


ALIASES = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "timeout": "timeout_s"}


@dataclass(frozen=True, slots=True)
class Options:
    """None: not given. ``max_tokens`` -1 with ``unbounded``: the rest of the context.

    ``top_logprobs_num``: alternatives per position; ``logprob_start_len``: absolute index of the first prompt id whose
    log-probability is wanted (-1: none). ``timeout_s`` seconds for the call. ``seed``: see the protocol's randomness.
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: tuple[str, ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    priority: int | None = None
    timeout_s: float | None = None
    retries: int | None = None
    heal: bool | None = None

    def over(self, base: Options) -> Options:
        """These options where given, else those of ``base``."""
        if base is NOTHING:
            return self
        given = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        return replace(base, **given) if given else base


NAMES: tuple[str, ...] = tuple(f.name for f in fields(Options))
NOTHING = Options()
RESERVED = frozenset(NAMES) | frozenset(ALIASES)

_RANGES: dict[str, Range] = {
    **{name: allowed for name, allowed in RANGES.items() if name != "logprobs"},
    "top_logprobs_num": Range(0, RANGES["logprobs"].high),
    "retries": Range(0, 100),
}
_WHOLE = frozenset(
    ("max_tokens", "min_tokens", "n", "top_k", "seed", "logprob_start_len", "top_logprobs_num", "priority", "retries")
)


def make_options(given: Mapping[str, Any], where: str = "gen") -> Options:
    """Checked options from keyword arguments; None values count as not given. Raises TypeError and ValueError."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        key = ALIASES.get(name, name)
        if key not in NAMES:
            raise TypeError(f"{where}() has no option {name!r}; it has: {', '.join(NAMES)}")
        if key in values:
            raise TypeError(f"{where}() got {key!r} twice (as {name!r} too)")
        values[key] = _checked(key, value)
    return Options(**values) if values else NOTHING


def _checked(name: str, value: Any) -> Any:
    if name == "stop":
        return _strings(value)
    if name == "stop_regex":
        return _patterns(value)
    if name == "stop_token_ids":
        return tuple(int(item) for item in ([value] if isinstance(value, int) else value))
    if name == "logit_bias":
        return tuple(sorted((int(key), float(bias)) for key, bias in dict(value).items()))
    if name in ("ignore_eos", "return_logprob", "return_text_in_logprobs", "heal"):
        return bool(value)
    if isinstance(value, bool) or not (isinstance(value, (int, float)) or hasattr(value, "__float__")):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if name in _WHOLE:
        if int(value) != value:
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        value = int(value)
    else:
        value = float(value)
    if name in _RANGES and value not in _RANGES[name]:
        allowed = _RANGES[name]
        least = "above" if allowed.above else "between"
        link = "and at most" if allowed.above else "and"
        raise ValueError(f"{name} must be {least} {allowed.low:g} {link} {allowed.high:g}, got {value!r}")
    if name == "timeout_s" and not value > 0:
        raise ValueError(f"timeout_s must be above 0 seconds, got {value!r}")
    return value


def _patterns(value: str | Sequence[str]) -> tuple[str, ...]:
    items = _strings(value, "stop_regex")
    for item in items:
        try:
            if re.compile(item).fullmatch(""):
                raise ValueError(f"stop_regex {item!r} matches nothing at all: the text would end at once")
        except re.error as error:
            raise ValueError(f"stop_regex {item!r} does not parse: {error}") from None
    return items


def _strings(value: str | Sequence[str], name: str = "stop") -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else tuple(value)
    for item in items:
        if not isinstance(item, str) or not item:
            raise ValueError(f"{name} must be a non-empty string or a list of them, got {value!r}")
    return items
