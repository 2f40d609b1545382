"""Replays one workload against one server, once, and sums up what came back."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from ramet.bench.client import Address, Answer, stream
from ramet.bench.records import is_valid
from ramet.bench.results import Run, percentile
from ramet.bench.watch import Usage, Watch
from ramet.bench.workloads import SCHEMA, Session, Workload
from ramet.runtime.protocol.errors import RametError

_MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """A server. ``pid``: root of its processes, where known; ``model``: the name to ask it for."""

    name: str
    url: str
    address: Address
    model: str
    pid: int | None = None
    flags: str = ""


@dataclass(frozen=True)
class Replayed:
    """``answers``: by session, then turn."""

    run: Run
    answers: tuple[tuple[Answer, ...], ...]

    @property
    def texts(self) -> list[str]:
        return [answer.text for turns in self.answers for answer in turns]


def replay(target: Target, workload: Workload, salt: str, timeout_s: float) -> Replayed:
    """One repetition. Errors of requests are counted, not raised."""
    with Watch(target.pid) as watch:
        started = time.perf_counter()
        answers = asyncio.run(_all(target, workload, salt, timeout_s))
        wall_s = time.perf_counter() - started
    return Replayed(summary(workload, answers, wall_s, watch.usage), answers)


def warm_up(target: Target, timeout_s: float) -> None:
    """Two short requests, so that nobody pays for first-time work. Raises RametError if the server refuses them."""
    sessions = (Session(("A short text to begin with.",)), Session(("Another one, as short as the first.",)))
    workload = Workload(name="", title="", kind="completion", sessions=sessions, concurrency=2, max_tokens=8)
    for (answer,) in asyncio.run(_all(target, workload, "", timeout_s)):
        if answer.error:
            raise RametError(f"{target.name} ({target.url}) does not answer as it should: {answer.error}")


async def _all(target: Target, workload: Workload, salt: str, timeout_s: float) -> tuple[tuple[Answer, ...], ...]:
    seats = asyncio.Semaphore(workload.concurrency)

    async def one(session: Session) -> tuple[Answer, ...]:
        async with seats:
            if workload.kind == "chat":
                return await _chat(target, workload, session, salt, timeout_s)
            body = _body(target, workload, prompt=salt + session.turns[0])
            return (await stream(target.address, "/v1/completions", body, timeout_s),)

    return tuple(await asyncio.gather(*map(one, workload.sessions)))


async def _chat(
    target: Target, workload: Workload, session: Session, salt: str, timeout_s: float
) -> tuple[Answer, ...]:
    messages = [{"role": "system", "content": salt + session.system}]
    answers = []
    for turn in session.turns:
        messages.append({"role": "user", "content": turn})
        body = _body(target, workload, messages=messages)
        answers.append(await stream(target.address, "/v1/chat/completions", body, timeout_s))
        messages.append({"role": "assistant", "content": answers[-1].text})
    return tuple(answers)


def _body(target: Target, workload: Workload, **content: object) -> bytes:
    fields: dict[str, object] = {
        "model": target.model,
        "max_tokens": workload.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **content,
    }
    if workload.ignore_eos:
        fields["ignore_eos"] = True
    if workload.structured:
        schema = {"name": "record", "schema": SCHEMA, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return msgspec.json.encode(fields)


def summary(workload: Workload, answers: Sequence[Sequence[Answer]], wall_s: float, usage: Usage) -> Run:
    every = [answer for turns in answers for answer in turns]
    wrong = [problem for answer in every if (problem := _problem(workload, answer))]
    good = [answer for answer in every if not answer.error]
    first = [1e3 * (answer.first - answer.sent) for answer in good if answer.first]
    between = [1e3 * (answer.last - answer.first) / (answer.new_tokens - 1) for answer in good if answer.new_tokens > 1]
    cached = [answer.cached_tokens for answer in good]
    structured = workload.structured
    return Run(
        wall_s=wall_s,
        requests=len(every),
        errors=len(wrong),
        first_error=wrong[0] if wrong else "",
        prompt_tokens=sum(answer.prompt_tokens for answer in good),
        cached_tokens=sum(count or 0 for count in cached) if any(count is not None for count in cached) else None,
        new_tokens=sum(answer.new_tokens for answer in good),
        ttft_mean_ms=fmean(first) if first else None,
        ttft_p99_ms=percentile(first, 99),
        itl_ms=fmean(between) if between else None,
        gap_p99_ms=percentile([1e3 * gap for answer in good for gap in answer.gaps], 99),
        cpu_s=usage.cpu_s,
        peak_pss_mib=usage.peak_pss / _MIB if usage.peak_pss is not None else None,
        other_cpu_s=usage.other_cpu_s,
        steal_s=usage.steal_s,
        valid=sum(is_valid(answer.text) for answer in good) if structured else None,
        cut=sum(answer.finish == "length" for answer in good) if structured else None,
        digest=hashlib.sha256("\0".join(answer.text for answer in every).encode()).hexdigest()[:12],
    )


def _problem(workload: Workload, answer: Answer) -> str:
    """A server that stops early does less work: that is an error too, or its figures would look good."""
    if answer.error:
        return answer.error
    if workload.ignore_eos and answer.new_tokens != workload.max_tokens:
        return f"{answer.new_tokens} new tokens instead of {workload.max_tokens} (is ignore_eos honoured?)"
    return ""
