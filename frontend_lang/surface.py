"""What programs are written with: `gen`, `select`, roles. Each call makes one immutable expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .choices import ChoicesMethod, as_method
from .constraint import Constraint, from_dtype, from_grammar, from_regex, from_schema
from .expr import Expr, Gen, Select
from .options import GenOptions, make_options
from .tools import Tool, ToolUse, as_tools
from .where import Where, caller

if TYPE_CHECKING:
    from typing_extensions import Unpack

M = TypeVar("M")


@overload
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    *,
    schema: type[M],
    **options: Unpack[GenOptions],
) -> Gen[M]: ...
@overload
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    *,
    dtype: type[M],
    **options: Unpack[GenOptions],
) -> Gen[M]: ...
@overload
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    *,
    choices: Sequence[str],
    **options: Unpack[GenOptions],
) -> Select: ...
@overload
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **options: Unpack[GenOptions],
) -> Gen[str]: ...
@overload
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    *,
    schema: object = None,
    json_schema: object = None,
    dtype: str | None = None,
    **options: Unpack[GenOptions],
) -> Gen[Any]: ...
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Any = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | str | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    *,
    schema: Any = None,
    grammar: str | None = None,
    whitespace: str | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    priority: int | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    heal: bool | None = None,
    max_new_tokens: int | None = None,
    max_completion_tokens: int | None = None,
    tools: Sequence[Callable[..., object] | Tool] | None = None,
    tool_choice: str = "auto",
    tool_errors: str = "return",
    max_rounds: int = 4,
) -> Expr:
    """Generate text into variable ``name`` (None: just append it).

    ``max_tokens``: 128 unless the run says otherwise; with a schema or grammar, the rest of the context. ``stop``
    replaces the run's. One of ``regex``, ``schema`` (dict, JSON text, pydantic model, type; also ``json_schema``),
    ``grammar`` (Lark, GBNF), ``dtype`` (int, float, bool, str) or ``choices`` (then it is a `select`) binds the text.
    ``n`` > 1 gives a list, and the state goes on with item 0. ``tools``: functions that the model may call, for up to
    ``max_rounds`` rounds (see docs/dsl.md). Raises ValueError, TypeError and InvalidConstraint.
    """
    where = caller()
    given: dict[str, object] = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "n": n,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "logit_bias": logit_bias,
        "ignore_eos": ignore_eos,
        "seed": seed,
        "return_logprob": return_logprob,
        "logprob_start_len": logprob_start_len,
        "top_logprobs_num": top_logprobs_num,
        "return_text_in_logprobs": return_text_in_logprobs,
        "priority": priority,
        "timeout_s": timeout_s,
        "retries": retries,
        "heal": heal,
        "max_new_tokens": max_new_tokens,
        "max_completion_tokens": max_completion_tokens,
    }
    binding = {
        "regex": regex,
        "schema": schema,
        "json_schema": json_schema,
        "grammar": grammar,
        "dtype": dtype,
        "choices": choices,
    }
    bound = [key for key, value in binding.items() if value is not None]
    if len(bound) > 1:
        raise ValueError(f"gen({name!r}) can be bound by one thing at a time, got {' and '.join(bound)}")
    if choices is not None:
        return _select(name, choices, 0.0 if temperature is None else temperature, choices_method, where)
    if heal and bound and bound[0] in ("schema", "json_schema", "grammar"):
        raise ValueError(f"gen({name!r}): heal=True goes with free text, regex or dtype, not with {bound[0]}")
    use = _tool_use(tools, tool_choice, tool_errors, max_rounds, bound) if tools is not None else None
    constraint: Constraint | None = None
    parse: Callable[[str], Any] | None = None
    if regex is not None:
        constraint = from_regex(regex)
    elif grammar is not None:
        constraint = from_grammar(grammar)
    elif bound in (["schema"], ["json_schema"]):
        constraint, parse = from_schema(schema if schema is not None else json_schema, whitespace)
    elif dtype is not None:
        constraint, parse, stops = from_dtype(dtype)
        own = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
        given["stop"] = (*own, *stops) or None
    return Gen(name, make_options(given), constraint, parse, where, use)


def _tool_use(
    tools: Sequence[Callable[..., object] | Tool], choice: str, errors: str, max_rounds: int, bound: list[str]
) -> ToolUse:
    if bound:
        raise ValueError(f"gen(tools=...) cannot be bound by {bound[0]} as well")
    if choice not in ("auto", "required"):
        raise ValueError(f"tool_choice must be 'auto' or 'required', got {choice!r}")
    if errors not in ("return", "raise"):
        raise ValueError(f"tool_errors must be 'return' (to the model) or 'raise', got {errors!r}")
    if max_rounds < 1:
        raise ValueError(f"max_rounds must be 1 or more, got {max_rounds!r}")
    return ToolUse(as_tools(tools), max_rounds, choice, errors)


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **options: Unpack[GenOptions],
) -> Gen[int]:
    """`gen` with ``dtype=int``; other sampling options by keyword."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=int, **options)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **options: Unpack[GenOptions],
) -> Gen[str]:
    """`gen` with ``dtype=str``: a quoted string; ``state[name]`` keeps the quotes."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str | None = None,
) -> Select:
    """Append the best of ``choices``; variable ``name`` is its text. Raises ValueError for bad choices."""
    if choices is None:
        raise ValueError("select() needs choices: a list of different, non-empty strings")
    return _select(name, choices, temperature, choices_method, caller())


def _select(
    name: str | None, choices: Sequence[str], temperature: float, method: ChoicesMethod | str | None, where: Where
) -> Select:
    if isinstance(choices, str):
        raise ValueError(f"choices must be a list of strings, got the string {choices!r}")
    items = tuple(choices)
    if not items:
        raise ValueError("choices is empty: give at least one")
    for item in items:
        if not isinstance(item, str) or not item:
            raise ValueError(f"each choice must be a non-empty string, got {item!r}")
    if len(set(items)) != len(items):
        twice = next(item for item in items if items.count(item) > 1)
        raise ValueError(f"choices must differ, but {twice!r} is there more than once")
    if temperature > 1e-5:
        raise ValueError(f"select scores its choices and draws nothing: temperature must be 0, got {temperature}")
    return Select(name, items, as_method(method), where=where)
