"""What a caller of the client asks for and gets. Ids are token ids, offsets are absolute in the branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from ramet.runtime.protocol.errors import InvalidRequest, Overloaded, RametError, RequestTimeout
from ramet.runtime.protocol.limits import MAX_BIASES, MAX_COUNT, RANGES, Range
from ramet.runtime.protocol.messages import (
    BranchRef,
    ConstraintSpec,
    EndReason,
    Limits,
    Namespace,
    Rejected,
    Sampling,
    StopHit,
    TokenLogprob,
    Usage,
)
from ramet.runtime.protocol.randomness import row_key

MAX_STOPS = 64
MAX_STOP_BYTES = 1024
MAX_SCORES = 8_000_000
_INT32 = 1 << 31


@dataclass(frozen=True)
class GenerateRequest:
    """Make a branch out of ``ids`` (after the cut ``parent=(branch, at)``, where given) and generate on it.

    ``max_tokens`` None: the rest of the context; a larger number is capped to it. ``stop``: strings; ``stop_ids``: ids;
    ``include_stop``: the text ends with the stop that ended it, not in front of it.
    ``logprobs``: -1 none, k >= 0 the chosen id's and the k best. ``logits_from``: absolute index from which prompt
    log-probabilities are wanted (-1: none); entry i scores ids[i + 1]. ``seed`` None: one is drawn at acceptance;
    ``key_path``: indices of the forks that led here. ``keep``: the branch stays until ``Client.release``.
    """

    ids: Sequence[int]
    parent: tuple[BranchRef, int] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    key_path: tuple[int, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    constraint: ConstraintSpec | None = None
    logprobs: int = -1
    logits_from: int = -1
    n: int = 1
    priority: int = 0
    timeout_s: float | None = None
    keep: bool = False
    fan_out: int = 0
    namespace: Namespace = field(default_factory=Namespace)

    def sampling(self, seed: int) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple(sorted(self.logit_bias.items())),
            key=row_key(seed, self.key_path),
        )


@dataclass(frozen=True)
class ScoreRequest:
    """Log-probabilities of each continuation after ``ids`` (after the cut ``parent``); nothing is kept.

    ``logprobs`` k: also the k best alternatives at each position.
    """

    ids: Sequence[int]
    continuations: Sequence[Sequence[int]]
    parent: tuple[BranchRef, int] | None = None
    logprobs: int = 0
    priority: int = 0
    timeout_s: float | None = None
    namespace: Namespace = field(default_factory=Namespace)


class Finish(Struct, frozen=True, gc=False):
    """How a choice ended. ``stop``: which stop hit, and where; ``message`` explains an error."""

    reason: EndReason
    usage: Usage
    stop: StopHit | None = None
    message: str = ""


class Chunk(Struct, frozen=True):
    """News of one choice. ``text`` never holds half a character or what may be the beginning of a stop string; joined
    over the choice it is the final text. ``ids`` start at ``offset``; the last chunk also holds the ids of a stop."""

    choice: int
    offset: int
    text: str
    ids: list[int]
    forced: bytes
    logprobs: list[TokenLogprob] | None = None
    finish: Finish | None = None


class ChoiceResult(Struct, frozen=True):
    """One finished choice. ``ids``: everything generated, a stop's ids included; ``text`` is cut where the stop begins.

    ``prompt_logprobs``: entry j belongs to the id at absolute index ``prompt_logprobs_from + j``.
    """

    text: str
    ids: list[int]
    forced: bytes
    logprobs: list[TokenLogprob] | None
    finish_reason: EndReason
    usage: Usage
    stop: StopHit | None
    branch: BranchRef
    n_prompt: int
    message: str = ""
    prompt_logprobs: list[TokenLogprob] = []
    prompt_logprobs_from: int = 0


class ScoreResult(Struct, frozen=True):
    """``logprobs[i][j]`` belongs to id j of continuation i."""

    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    usage: Usage


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises InvalidRequest if an id lies outside the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest(f"{param} holds token id {bad}; ids are 0 to {vocab_size - 1}", param=param)


def _between(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    allowed = Range(low, high, above)
    if value not in allowed:
        raise InvalidRequest(f"{name} is {value}; it must lie in {allowed}", param=name)


def check_request(request: GenerateRequest, vocab_size: int) -> None:
    """Raises InvalidRequest naming the field that is out of its range."""
    for name, allowed in RANGES.items():
        value = getattr(request, name)
        if value is not None and value not in allowed:
            raise InvalidRequest(f"{name} is {value}; it must lie in {allowed}", param=name)
    _between("logits_from", request.logits_from, -1, MAX_COUNT)
    _between("fan_out", request.fan_out, 0, MAX_COUNT)
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}, more than max_tokens ({request.max_tokens})", param="min_tokens"
        )
    if request.seed is not None:
        _between("seed", request.seed, -(1 << 63), (1 << 64) - 1)
    _check_order(request)
    check_ids(request.ids, vocab_size, "ids")
    check_ids(request.stop_ids, vocab_size, "stop_token_ids")
    if len(request.logit_bias) > MAX_BIASES:
        raise InvalidRequest(
            f"logit_bias has {len(request.logit_bias)} entries; at most {MAX_BIASES} are allowed; "
            "use a constraint to leave few ids",
            param="logit_bias",
        )
    check_ids(list(request.logit_bias), vocab_size, "logit_bias")
    for token, bias in request.logit_bias.items():
        if not -100.0 <= bias <= 100.0:
            raise InvalidRequest(f"logit_bias of id {token} is {bias}; it must lie in [-100, 100]", param="logit_bias")
    if len(request.stop) > MAX_STOPS or len(request.stop_ids) > MAX_STOPS:
        raise InvalidRequest(f"at most {MAX_STOPS} stops are allowed", param="stop")
    longest = max((len(stop.encode(errors="surrogatepass")) for stop in request.stop), default=0)
    if longest > MAX_STOP_BYTES:
        raise InvalidRequest(
            f"a stop string has {longest} bytes; at most {MAX_STOP_BYTES} are possible: its beginning is enough",
            param="stop",
        )
    if "" in request.stop:
        raise InvalidRequest("an empty stop string would end every text at once", param="stop")


def check_score(request: ScoreRequest, vocab_size: int) -> None:
    """Raises InvalidRequest naming the field that is out of its range."""
    _between("logprobs", request.logprobs, 0, RANGES["logprobs"].high)
    _check_order(request)
    check_ids(request.ids, vocab_size, "ids")
    for ids in request.continuations:
        check_ids(ids, vocab_size, "continuations")
        if not len(ids):
            raise InvalidRequest("a continuation without ids has no score", param="continuations")
    size = sum(map(len, request.continuations)) * (1 + request.logprobs)
    if size > MAX_SCORES:
        raise InvalidRequest(
            f"the score has {size} values (ids of all continuations, each with {request.logprobs} alternatives); at "
            f"most {MAX_SCORES} come in one answer: score fewer continuations at once, or give a smaller logprobs",
            param="continuations",
        )


def _check_order(request: GenerateRequest | ScoreRequest) -> None:
    _between("priority", request.priority, -_INT32, _INT32 - 1)
    if request.timeout_s is not None:
        _between("timeout_s", request.timeout_s, 0.0, 1e6, above=True)


def limits_of(request: GenerateRequest, n_prompt: int, context: int) -> Limits:
    """``context`` 0: not known. Raises InvalidRequest for a prompt that leaves no room."""
    if n_prompt == 0:
        raise InvalidRequest("the prompt holds no token", param="prompt", code="empty_prompt")
    if request.logits_from >= n_prompt:
        raise InvalidRequest(
            f"logits_from is {request.logits_from}; the prompt has {n_prompt} ids", param="logits_from"
        )
    wanted = request.max_tokens
    if not context:
        if wanted is None:
            raise InvalidRequest("max_tokens has to be given: the context is not known", param="max_tokens")
        return Limits(wanted, request.min_tokens)
    left = context - n_prompt
    if left < 0 or (left == 0 and wanted != 0):
        raise too_long(n_prompt, context)
    most = left if wanted is None else min(wanted, left)
    return Limits(most, min(request.min_tokens, most))


def too_long(tokens: int, context: int) -> InvalidRequest:
    return InvalidRequest(
        f"the prompt has {tokens} tokens, but the context of this model is {context} tokens, "
        "of which at least one must be left to generate; shorten the prompt",
        param="prompt",
        code="context_length_exceeded",
    )


def refusal(message: Rejected) -> RametError:
    """The error that a Rejected stands for."""
    if message.code in ("queue_full", "draining"):
        error = Overloaded(message.message)
        error.code = message.code
        return error
    if message.code == "timeout":
        return RequestTimeout(message.message)
    return InvalidRequest(message.message, param="prompt", code=message.code)
