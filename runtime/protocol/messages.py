"""The request language: every message between frontend, scheduler and worker.

Typed, array-like msgspec structs; token arrays travel as little-endian int32 buffers (see ``ids.py``). Offsets are
absolute in the branch: index 0 is the first prompt id.

    ids      0 ........ n_prompt ........ len(ids)
             |  prompt  |  generated (sampled or forced)
    computed 0 ............. c            KV is stored for ids[0:c]; ids[c:] is the row's tail
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

PROTOCOL_VERSION = 1

BranchRef: TypeAlias = "tuple[int, int]"
"""(id of the Submit that made the branch, choice index: 0 unless n > 1)."""

Ids: TypeAlias = bytes
"""Token ids as a little-endian int32 buffer."""

EndReason = Literal["stop", "end", "length", "cancelled", "error"]


class _Message(Struct, frozen=True, array_like=True, tag=True, gc=False):
    pass


class _Value(Struct, frozen=True, array_like=True, gc=False):
    pass


# ---------------------------------------------------------------- parts of messages


class Namespace(_Value, frozen=True):
    """What may share a cache: requests of different namespaces never see each other's blocks."""

    tenant: str = ""
    salt: str = ""
    adapter: str = ""


class Sampling(_Value, frozen=True):
    """How the next id is drawn. ``key`` seeds the row (see ``randomness.py``); the counter is the absolute position.

    temperature 0 is greedy (equal logits: the lower id). top_k <= 0 and top_p = 1 switch those filters off.
    Penalties count ids at and after n_prompt (frequency, presence) or all ids (repetition).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    key: int = 0


class Stops(_Value, frozen=True):
    """What ends a row besides its length. ``strings`` are searched in the bytes of generated ids, ``ids`` are dropped.

    ``ignore_end`` lets a row run past the model's own end ids (they are then masked out).
    """

    strings: tuple[bytes, ...] = ()
    ids: tuple[int, ...] = ()
    ignore_end: bool = False


class Limits(_Value, frozen=True):
    """``max_tokens`` and ``min_tokens`` count ids after n_prompt, forced ones included. Before ``min_tokens`` ends and
    stop ids are not drawn and stops do not count; what a constraint demands goes before that."""

    max_tokens: int
    min_tokens: int = 0


class ConstraintSpec(_Value, frozen=True):
    """``kind``: json_schema, regex, choice (a JSON list of strings), lark, gbnf, structural (tagged tool calls).

    ``whitespace``: compact (default) or flexible (bounded); JSON Schema only. ``options``: JSON text for the rest.
    """

    kind: str
    text: str
    whitespace: str = "compact"
    options: str = ""


class TokenLogprob(_Value, frozen=True):
    """Natural logs. ``raw`` is log softmax of the model's logits; ``masked`` renormalises over the ids the constraint
    allows (equal to ``raw`` where there is none; 0.0 for forced ids). ``top``: (id, raw), best first."""

    raw: float
    masked: float
    top: tuple[tuple[int, float], ...] = ()


class StopHit(_Value, frozen=True):
    """``which`` indexes Stops.strings, or is -1 - i for Stops.ids[i]. ``at``: absolute index of the id in which the
    stop begins. ``leftover``: bytes of that id in front of the stop: the text is bytes(ids[n_prompt:at]) + leftover."""

    which: int
    at: int
    leftover: bytes


class Usage(_Value, frozen=True):
    """prompt = cached + computed; completion = forced + sampled. ``cached`` is that of the first admission."""

    prompt: int = 0
    cached: int = 0
    computed: int = 0
    completion: int = 0
    forced: int = 0
    sampled: int = 0


# ---------------------------------------------------------------- all directions


class Hello(_Message, frozen=True):
    """Handshake. ``instance``: random id of the sending process; a new one means that it lost its state.

    A worker gives its KV blocks and numerics fingerprint; a scheduler gives its epoch; a frontend leaves both at 0.
    """

    version: int
    role: str
    instance: int
    epoch: int = 0
    fingerprint: str = ""
    blocks: int = 0
    block_size: int = 0


class Heartbeat(_Message, frozen=True):
    """Sent by a thread: ``progress`` counts steps (worker) or loop turns; ``busy`` says that work is under way."""

    progress: int = 0
    busy: bool = False


# ---------------------------------------------------------------- frontend -> scheduler


class Constraint(_Message, frozen=True):
    """Sent before the first use of ``key`` in an epoch; the scheduler passes it on to the worker."""

    key: str
    spec: ConstraintSpec


class Submit(_Message, frozen=True):
    """Make a branch and generate on it. ``ids`` are what follows the cut ``parent=(branch, at)``; without a parent they
    are the whole branch. ``n_prompt`` is absolute; ids at and after it were generated earlier (resend after a death).

    ``logits_from``: absolute index from which prompt log-probabilities are wanted (-1: none); entry i scores ids[i+1].
    ``logprobs``: -1 none, k >= 0 the chosen id's and the k best. ``keep``: hold the branch's blocks until Release.
    ``fan_out``: hint of how many children will be forked. ``n`` choices share the prompt; choice i has key
    choice_key(sampling.key, i). ``forced``: one byte per generated id (n_prompt on) of a resend. max_tokens 0: prefill.
    """

    id: int
    ids: Ids
    n_prompt: int
    sampling: Sampling
    limits: Limits
    stops: Stops = Stops()
    parent: tuple[BranchRef, int] | None = None
    logits_from: int = -1
    logprobs: int = -1
    constraint_key: str = ""
    namespace: Namespace = Namespace()
    priority: int = 0
    remaining_ms: int = -1
    keep: bool = False
    fan_out: int = 0
    n: int = 1
    choice: int = -1
    """>= 0: resend of that one choice of an n > 1 request (n is then 1, the key already that of the choice)."""
    forced: bytes = b""
    usage: Usage | None = None
    """Of a resend: what was counted before, so that totals stay true."""
    retain_s: float = 0.0
    """Soft retention: what the branch leaves in the cache goes last for so many seconds after its end."""


class Score(_Message, frozen=True):
    """Log-probabilities of each continuation after a context; nothing is appended or kept."""

    id: int
    ids: Ids
    continuations: tuple[Ids, ...]
    parent: tuple[BranchRef, int] | None = None
    namespace: Namespace = Namespace()
    priority: int = 0
    remaining_ms: int = -1
    logprobs: int = 0
    """k: also the k best alternatives at each position of the continuations."""


class Release(_Message, frozen=True):
    branch: BranchRef


class Cancel(_Message, frozen=True):
    """Idempotent. Ends every choice of ``id`` that still runs with ``cancelled``."""

    id: int


class Control(_Message, frozen=True):
    """``op``: stats, flush, drain, tree, events. The reply's ``data`` is JSON."""

    call_id: int
    op: str
    argument: str = ""


# ---------------------------------------------------------------- scheduler -> frontend


class Accepted(_Message, frozen=True):
    id: int


class Rejected(_Message, frozen=True):
    """Terminal. ``code``: queue_full, context_length_exceeded, pool_too_small, unknown_branch, draining, timeout."""

    id: int
    code: str
    message: str


class TokenDelta(_Message, frozen=True):
    """Ids appended at absolute ``offset``. ``forced``: one byte per id. ``cached_tokens``: of the first admission."""

    id: int
    choice: int
    offset: int
    ids: Ids
    forced: bytes
    logprobs: tuple[TokenLogprob, ...] | None
    cached_tokens: int


class PromptLogprobs(_Message, frozen=True):
    """Entry j belongs to the id at absolute index ``offset + j``."""

    id: int
    choice: int
    offset: int
    logprobs: tuple[TokenLogprob, ...]


class Scored(_Message, frozen=True):
    """Terminal message of a Score: one tuple of log-probabilities per continuation, one entry per id of it."""

    id: int
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    usage: Usage


FRONTEND_GONE = "its frontend is gone"
"""Message of a Finished: the scheduler has not heard of the frontend for a while. A frontend that reads it lives, and
asks again."""


class Finished(_Message, frozen=True):
    """Terminal message of one choice. The prompt's usage is counted in choice 0 only."""

    id: int
    choice: int
    reason: EndReason
    usage: Usage
    stop: StopHit | None = None
    message: str = ""


class ControlReply(_Message, frozen=True):
    call_id: int
    data: bytes


# ---------------------------------------------------------------- scheduler -> worker


class RowStart(_Message, frozen=True):
    """Before a row's first plan. ``ids`` holds everything known, cached ids included; KV of ids[:computed] is stored in
    ``blocks`` (complete after the first plan's copies). A resumed row replays ids[n_prompt:] in a fresh matcher."""

    row: int
    ids: Ids
    n_prompt: int
    computed: int
    blocks: tuple[int, ...]
    sampling: Sampling
    stops: Stops
    limits: Limits
    logits_from: int = -1
    logprobs: int = -1
    constraint_key: str = ""


class PlanRow(_Value, frozen=True):
    """Compute min(ceiling, length of the tail) ids of the row. ``blocks`` are appended to its block table;
    ``replaced``: (index in the table, new block), after a commit met a duplicate."""

    row: int
    ceiling: int
    blocks: tuple[int, ...] = ()
    replaced: tuple[tuple[int, int], ...] = ()


class BlockCopy(_Value, frozen=True):
    """Copy the KV of the first ``tokens`` slots of block ``source`` into ``target``, before the plan's writes."""

    source: int
    target: int
    tokens: int


class Group(_Value, frozen=True):
    """Rows whose block tables agree on absolute token positions [start, stop): whole attention segments only."""

    rows: tuple[int, ...]
    start: int
    stop: int


class StepPlan(_Message, frozen=True):
    step: int
    rows: tuple[PlanRow, ...]
    copies: tuple[BlockCopy, ...] = ()
    groups: tuple[Group, ...] = ()


class Drop(_Message, frozen=True):
    """Forget the row, after the plans already sent. Idempotent."""

    row: int


class Shutdown(_Message, frozen=True):
    pass


# ---------------------------------------------------------------- worker -> scheduler


class RowEnd(_Value, frozen=True):
    reason: EndReason
    stop: StopHit | None = None
    message: str = ""


class RowResult(_Value, frozen=True):
    """``ids`` appended in this step (sampled or forced; ids after a stop are dropped). ``computed``: absolute count of
    ids whose KV is stored now. ``prompt_logprobs``: (absolute index of the first scored id, entries)."""

    row: int
    computed: int
    ids: Ids = b""
    forced: bytes = b""
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[int, tuple[TokenLogprob, ...]] | None = None
    end: RowEnd | None = None


class StepResult(_Message, frozen=True):
    """``seconds``: duration of the step at the worker; ``gap``: idle time in front of it."""

    step: int
    rows: tuple[RowResult, ...]
    seconds: float = 0.0
    gap: float = 0.0


class ConstraintFailed(_Message, frozen=True):
    """The worker could not repeat a compile that passed in the frontend; its rows end with ``error``."""

    key: str
    kind: str
    message: str


class WorkerError(_Message, frozen=True):
    """The step failed as a whole (out of memory, a kernel's error); the worker lives on, its rows are to be rerun."""

    step: int
    rows: tuple[int, ...]
    message: str


ToScheduler = (
    Hello
    | Heartbeat
    | Constraint
    | Submit
    | Score
    | Release
    | Cancel
    | Control
    | StepResult
    | ConstraintFailed
    | WorkerError
)
ToFrontend = Hello | Accepted | Rejected | TokenDelta | PromptLogprobs | Scored | Finished | ControlReply
ToWorker = Hello | Constraint | RowStart | StepPlan | Drop | Shutdown
