"""Meta information of a variable, in the shape that programs of this kind of DSL read."""

from __future__ import annotations

from typing import Any

from .backend import Outcome, Scores
from .calls import CallRecord
from .choices import ChoicesDecision


def gen_meta(outcome: Outcome, record: CallRecord) -> dict[str, Any]:
    """Counts of tokens; ``finish_reason`` (type and what matched); log-probabilities as (logprob, id, text)."""
    kind = "length" if outcome.reason == "length" else "stop"
    meta = _usage(record)
    meta["finish_reason"] = {"type": kind, "matched": outcome.stop} if kind == "stop" else {"type": kind}
    meta["output_ids"] = list(outcome.ids)
    if outcome.logprobs:
        meta["output_token_logprobs"] = [entry for entry, _ in outcome.logprobs]
        meta["output_top_logprobs"] = [top for _, top in outcome.logprobs]
    if outcome.prompt_logprobs:
        meta["input_token_logprobs"] = list(outcome.prompt_logprobs)
    return meta


def select_meta(scores: Scores, means: list[float], decision: ChoicesDecision, record: CallRecord) -> dict[str, Any]:
    """``input_token_logprobs[i]``: tokens of choice i from the cut on; their text is ``healed`` + the choice."""
    meta = _usage(record)
    meta["finish_reason"] = {"type": "stop", "matched": None}
    meta["input_token_logprobs"] = [list(entries) for entries in scores.tokens]
    meta["output_token_logprobs"] = [[] for _ in scores.tokens]
    meta["normalized_prompt_logprobs"] = means
    meta["healed"] = scores.healed
    if scores.unconditional is not None:
        meta["unconditional_token_logprobs"] = [list(entries) for entries in scores.unconditional]
    meta.update(decision.meta_info or {})
    return meta


def _usage(record: CallRecord) -> dict[str, Any]:
    usage = record.usage
    return {
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "computed_tokens": usage.computed,
        "completion_tokens": usage.completion,
        "forced_tokens": usage.forced,
        "sampled_tokens": usage.sampled,
        "prompt_length": usage.prompt,
        "completion_length": usage.completion,
        "seconds": record.end - record.begin,
    }
