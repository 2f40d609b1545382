"""Options of one call, with everything filled in that was not given."""

from __future__ import annotations

from ramet.runtime.protocol.messages import ConstraintSpec

from .backend import GenCall
from .options import Options


def fill(
    o: Options,
    max_tokens: int | None,
    stop: tuple[str, ...],
    constraint: ConstraintSpec | None,
    path: tuple[int, ...] = (),
) -> GenCall:
    """``max_tokens`` (None: the rest of the context) and ``stop`` are the caller's, the rest comes from ``o``."""
    wants_logprobs = o.return_logprob or o.top_logprobs_num is not None
    start = o.logprob_start_len if o.logprob_start_len is not None and o.return_logprob else -1
    return GenCall(
        max_tokens=max_tokens,
        min_tokens=o.min_tokens or 0,
        n=o.n or 1,
        stop=stop,
        stop_token_ids=o.stop_token_ids or (),
        stop_regex=o.stop_regex or (),
        heal=bool(o.heal),
        ignore_eos=bool(o.ignore_eos),
        temperature=1.0 if o.temperature is None else o.temperature,
        top_p=1.0 if o.top_p is None else o.top_p,
        top_k=-1 if o.top_k is None else o.top_k,
        min_p=o.min_p or 0.0,
        frequency_penalty=o.frequency_penalty or 0.0,
        presence_penalty=o.presence_penalty or 0.0,
        repetition_penalty=1.0 if o.repetition_penalty is None else o.repetition_penalty,
        logit_bias=o.logit_bias or (),
        seed=o.seed,
        path=path,
        constraint=constraint,
        logprobs=(o.top_logprobs_num or 0) if wants_logprobs else -1,
        prompt_logprobs_from=start,
        priority=o.priority or 0,
        timeout_s=o.timeout_s,
    )
