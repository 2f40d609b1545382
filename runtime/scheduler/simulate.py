"""Replay a trace through the real scheduler and the real tree, in virtual time.

    trace ──► arrivals ──► Scheduler ──► VirtualWorker (checks every block) ──► Report
                              ▲ clock: the sum of the steps' durations

Nothing sleeps and nothing is computed; what is measured is what the scheduler decided.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.protocol.messages import (
    Control,
    ControlReply,
    Finished,
    Limits,
    Namespace,
    Rejected,
    Sampling,
    Submit,
    ToFrontend,
    TokenDelta,
)

from .core import Scheduler
from .trace import TraceRequest, Vocabulary
from .virtual import SCORED_KEY, Speed, VirtualWorker

CLIENT = b"trace"


class SimulationStuck(RuntimeError):
    """Requests are left and nothing can run: a fault of the scheduler, or a pool too small for the trace."""


@dataclass(frozen=True)
class Options:
    """``pool_tokens``: size of the KV pool. ``concurrency``: requests that may be open at once (0: the trace's own
    arrival times decide, 1: one after another)."""

    pool_tokens: int
    scheduler: SchedulerConfig
    speed: Speed = field(default_factory=Speed)
    concurrency: int = 0
    verify: bool = True


class Report(msgspec.Struct):
    """Tokens are summed over rows (n choices: n times). ``hit_rate`` = cached / prompt. ``first_token_s``: from arrival
    to the first id, by quantile. ``waste``: allocated but unused KV over allocated, over all steps."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    hit_rate: float = 0.0
    block_hit_rate: float = 0.0
    """Whole blocks found over blocks of the prompts, the last one's part included: what block caches count."""
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    overtakes: int = 0
    evictions: int = 0
    steps: int = 0
    waste: float = 0.0
    seconds: float = 0.0
    first_token_s: dict[str, float] = {}
    pool_tokens: int = 0
    policy: str = ""


@dataclass(slots=True)
class _Progress:
    """What is known of one request of the trace while it runs."""

    arrived: float = 0.0
    first: float = -1.0
    left: int = 0


@dataclass
class _Replay:
    """State of one simulation."""

    requests: Sequence[TraceRequest]
    options: Options
    scheduler: Scheduler
    worker: VirtualWorker
    vocabulary: Vocabulary
    progress: list[_Progress]
    now: float = 0.0
    open: int = 0
    ended: int = 0
    ready: list[tuple[float, int]] = field(default_factory=list)
    blocked: dict[int, int] = field(default_factory=dict)
    dependants: dict[int, list[int]] = field(default_factory=dict)
    whole_blocks: int = 0
    prompt_blocks: int = 0
    report: Report = field(default_factory=Report)


def simulate(requests: Sequence[TraceRequest], options: Options) -> Report:
    """Run all requests to their end. Raises SimulationStuck, and BlockMismatch if a row reads what is not its own."""
    size = options.scheduler.block_size
    scheduler = Scheduler(options.scheduler)
    scheduler.reset_device(max(options.pool_tokens // size, 1), size, "virtual", 0.0)
    longest = max((count for r in requests for _, count in r.prompt), default=1)
    span = 1 << (max(longest, max((r.output for r in requests), default=1)) - 1).bit_length()
    replay = _Replay(
        requests,
        options,
        scheduler,
        VirtualWorker(size, options.speed, verify=options.verify),
        Vocabulary(max(span, 1)),
        [_Progress() for _ in requests],
    )
    for index, request in enumerate(requests):
        for earlier in request.after:
            replay.dependants.setdefault(earlier, []).append(index)
        replay.blocked[index] = len(request.after)
        if not request.after:
            heapq.heappush(replay.ready, (request.at if not options.concurrency else 0.0, index))
    while replay.ended < len(requests):
        _turn(replay)
    return _finish(replay)


def _turn(replay: _Replay) -> None:
    """Let arrive what has arrived, run one step."""
    limit = replay.options.concurrency
    while replay.ready and replay.ready[0][0] <= replay.now and not (limit and replay.open >= limit):
        _submit(replay, heapq.heappop(replay.ready)[1])
    planned = replay.scheduler.schedule(replay.now)
    _hear(replay, replay.scheduler.take_messages())
    if planned is None:
        if not replay.ready or (limit and replay.open >= limit):
            raise SimulationStuck(f"{len(replay.requests) - replay.ended} requests are left and nothing runs")
        replay.now = max(replay.now, replay.ready[0][0])
        return
    before, plan = planned
    replay.worker.take(before)
    if plan is None:
        return
    result = replay.worker.step(plan)
    replay.now += result.seconds
    _hear(replay, replay.scheduler.apply(result, replay.now))


def _submit(replay: _Replay, index: int) -> None:
    request = replay.requests[index]
    ids = replay.vocabulary.ids(request.prompt)
    tokens = request.tokens
    key = SCORED_KEY if request.score else replay.vocabulary.base(f"out {index}")
    replay.progress[index] = _Progress(max(replay.now, request.at if not replay.options.concurrency else 0.0))
    replay.progress[index].left = request.n
    replay.open += 1
    message = Submit(
        index,
        ids,
        tokens,
        Sampling(key=key),
        Limits(0 if request.score else request.output),
        namespace=Namespace(request.tenant),
        priority=request.priority,
        logits_from=tokens - request.prompt[-1][1] - 1 if request.score else -1,
        keep=request.keep,
        n=request.n,
    )
    _hear(replay, replay.scheduler.submit(CLIENT, message, replay.now))


def _hear(replay: _Replay, out: Sequence[tuple[bytes, ToFrontend]]) -> None:
    for _, message in out:
        if isinstance(message, TokenDelta):
            progress = replay.progress[message.id]
            if progress.first < 0:
                progress.first = replay.now
            replay.report.generated_tokens += len(message.ids) // 4
        elif isinstance(message, Finished):
            progress = replay.progress[message.id]
            if progress.first < 0:
                progress.first = replay.now
            if message.choice == 0:
                size = replay.options.scheduler.block_size
                replay.whole_blocks += message.usage.cached // size
                replay.prompt_blocks += -(-message.usage.prompt // size)
            progress.left -= 1
            if not progress.left:
                _end(replay, message.id)
        elif isinstance(message, Rejected):
            replay.report.refused += 1
            _end(replay, message.id)


def _end(replay: _Replay, index: int) -> None:
    replay.open -= 1
    replay.ended += 1
    for later in replay.dependants.get(index, ()):
        replay.blocked[later] -= 1
        if not replay.blocked[later]:
            at = replay.requests[later].at if not replay.options.concurrency else 0.0
            heapq.heappush(replay.ready, (max(at, replay.now), later))


def _finish(replay: _Replay) -> Report:
    reply = replay.scheduler.control(CLIENT, Control(0, "stats"), replay.now)[0][1]
    assert isinstance(reply, ControlReply)
    stats: dict[str, Any] = msgspec.json.decode(reply.data)
    report = replay.report
    report.requests = len(replay.requests)
    report.prompt_tokens, report.cached_tokens = stats["row_prompt"], stats["row_cached"]
    report.hit_rate = report.cached_tokens / max(report.prompt_tokens, 1)
    report.block_hit_rate = replay.whole_blocks / max(replay.prompt_blocks, 1)
    report.computed_tokens = replay.worker.computed
    report.recomputed_tokens = stats["recomputed"]
    report.preemptions, report.overtakes = stats["preemptions"], stats["overtakes"]
    report.evictions, report.steps = stats["evictions"], stats["steps"]
    report.waste = stats["waste"]["mean"]
    report.seconds = replay.now
    delays = sorted(p.first - p.arrived for p in replay.progress if p.first >= 0)
    if delays:
        report.first_token_s = {
            name: delays[min(int(len(delays) * share), len(delays) - 1)]
            for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
        }
    report.pool_tokens = replay.options.pool_tokens
    report.policy = replay.options.scheduler.policy
    return report
