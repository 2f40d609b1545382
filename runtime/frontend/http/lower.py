"""From the fields of a body to the request that the client takes."""

from __future__ import annotations

from typing import Any

from ramet.runtime.frontend.requests import GenerateRequest
from ramet.runtime.protocol.messages import ConstraintSpec, Namespace

from .errors import bad_request
from .fields import GenerationBody

_SAMPLING = (
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
    "priority",
)
"""Fields of the same name and meaning there; absent or null: the default."""


def lower(
    body: GenerationBody,
    ids: list[int],
    *,
    max_tokens: int | None,
    constraint: ConstraintSpec | None,
    logprobs: int = -1,
    logits_from: int = -1,
    tenant: str = "",
) -> GenerateRequest:
    """Raises HttpError for what the client could not tell the field of."""
    given: dict[str, Any] = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if given.get("top_k") == 0:
        given["top_k"] = -1
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return GenerateRequest(
        ids,
        logit_bias=_logit_bias(body),
        seed=body.seed,
        max_tokens=max_tokens,
        stop=tuple(stop for stop in stops if stop),
        stop_ids=tuple(body.stop_token_ids or ()),
        constraint=constraint,
        logprobs=logprobs,
        logits_from=logits_from,
        timeout_s=body.timeout_s,
        namespace=Namespace(tenant=tenant, salt=body.cache_salt or ""),
        **given,
    )


def _logit_bias(body: GenerationBody) -> dict[int, float]:
    result: dict[int, float] = {}
    for key, value in (body.logit_bias or {}).items():
        try:
            result[int(key)] = value
        except ValueError:
            raise bad_request(f"logit_bias: {key!r} is not a token id", "logit_bias") from None
    return result
