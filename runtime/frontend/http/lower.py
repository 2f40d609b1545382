"""From the fields of a body to the request that the client takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ramet.runtime.frontend.requests import GenerateRequest
from ramet.runtime.protocol.messages import ConstraintSpec, Namespace

from .errors import bad_request
from .fields import GenerationBody, SamplingFields

_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "n",
    "seed",
)
"""Fields of the same name and meaning there; absent or null: the default."""


def lower(
    body: GenerationBody,
    ids: list[int],
    *,
    defaults: Mapping[str, float | int],
    max_tokens: int | None,
    constraint: ConstraintSpec | None,
    logprobs: int = -1,
    logits_from: int = -1,
    tenant: str = "",
) -> GenerateRequest:
    """``defaults``: see ``sampling``. Raises HttpError for what the client could not tell the field of."""
    if max_tokens is None and body.n_predict is not None and body.n_predict >= 0:
        max_tokens = body.n_predict
    if body.prompt_logprobs is not None:
        if body.stream:
            raise bad_request("prompt_logprobs are not streamed", "prompt_logprobs")
        if body.prompt_logprobs < 0:
            raise bad_request(f"prompt_logprobs is {body.prompt_logprobs}; 0 or more are possible", "prompt_logprobs")
        logprobs, logits_from = max(logprobs, body.prompt_logprobs), 0 if len(ids) > 1 else -1
    return replace(
        sampling(body, defaults),
        ids=ids,
        max_tokens=max_tokens,
        constraint=constraint,
        logprobs=logprobs,
        logits_from=logits_from,
        priority=body.priority or 0,
        timeout_s=body.timeout_s,
        namespace=Namespace(tenant=tenant, salt=body.cache_salt or ""),
    )


def sampling(body: SamplingFields, defaults: Mapping[str, float | int], place: str = "") -> GenerateRequest:
    """A request without a prompt: how ids are drawn, and its stops. ``defaults``: what a field is that is not given.
    ``place``: in front of names in errors."""
    given: dict[str, Any] = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    if body.repeat_penalty is not None:
        given.setdefault("repetition_penalty", body.repeat_penalty)
    given = {**defaults, **given}
    if given.get("top_k") == 0:
        given["top_k"] = -1
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return GenerateRequest(
        [],
        logit_bias=_logit_bias(body.logit_bias or {}, f"{place}logit_bias"),
        stop=tuple(stop for stop in stops if stop),
        stop_ids=tuple(body.stop_token_ids or ()),
        include_stop=bool(body.include_stop_str_in_output),
        **given,
    )


def truncated(ids: list[int], keep: int | None, context: int) -> list[int]:
    """The last ``keep`` ids (None: all; -1: as many as the context takes). Raises HttpError."""
    if keep is None:
        return ids
    if keep < -1 or keep == 0:
        raise bad_request(
            f"truncate_prompt_tokens is {keep}; 1 or more, or -1 for the context, are possible",
            "truncate_prompt_tokens",
        )
    return ids[-(context - 1 if keep == -1 else keep) :]


def _logit_bias(given: dict[str, float], param: str) -> dict[int, float]:
    try:
        return {int(key): value for key, value in given.items()}
    except ValueError:
        raise bad_request(f"{param}: its keys are token ids", param) from None
