"""Judging branches without changing them: `score`, and `top` to keep the best."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, TypeVar, overload

from .async_state import AsyncState
from .core import StateCore
from .execute_calls import score_branch
from .loop import LoopThread
from .state import State, _StateBase

S = TypeVar("S", bound="_StateBase[Any]")
Row = list[float]


@overload
def score(states: State[Any], *, after: str = "", choices: Sequence[str]) -> Row: ...
@overload
def score(states: AsyncState, *, after: str = "", choices: Sequence[str]) -> Awaitable[Row]: ...
@overload
def score(states: Iterable[State[Any]], *, after: str = "", choices: Sequence[str]) -> list[Row]: ...
@overload
def score(states: Iterable[AsyncState], *, after: str = "", choices: Sequence[str]) -> Awaitable[list[Row]]: ...
def score(states: Any, *, after: str = "", choices: Sequence[str]) -> Any:
    """Probability of each of ``choices`` (given that it is one of them) if ``after`` and then the choice followed; for
    one state, or for each of several. Nothing is appended. States of ``async def`` programs: await the result."""
    items = tuple(choices)
    if isinstance(choices, str) or not items or len(set(items)) != len(items) or not all(items):
        raise ValueError(f"choices must be different, non-empty strings, got {choices!r}")
    one = isinstance(states, _StateBase)
    group: list[_StateBase[Any]] = [states] if one else list(states)
    if not group:
        return []
    cores = [state._core for state in group]
    loop: LoopThread = cores[0].run.backend.loop
    work = _score_all(cores, after, items, one)
    return loop.join(work) if isinstance(group[0], AsyncState) else loop.wait(work)


async def _score_all(cores: list[StateCore], after: str, choices: tuple[str, ...], one: bool) -> Any:
    waiting = [core.request(lambda core: score_branch(core, after, choices)) for core in cores]
    rows = [_probabilities(await future) for future in waiting]
    return rows[0] if one else rows


def _probabilities(logs: list[float]) -> Row:
    top = max(logs)
    weights = [math.exp(value - top) for value in logs]
    return [weight / sum(weights) for weight in weights]


def top(states: Iterable[S], scores: Sequence[float] | Sequence[Sequence[float]], k: int) -> list[S]:
    """The ``k`` states with the highest scores, best first (equal scores: in their order); a row counts by its first
    entry. The others are ended and let go of their KV; they can still be read."""
    group = list(states)
    if len(scores) != len(group):
        raise ValueError(f"{len(scores)} scores for {len(group)} states: give one for each")
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k!r}")
    keys = [float(row[0]) if isinstance(row, Sequence) else float(row) for row in scores]
    order = sorted(range(len(group)), key=lambda i: -keys[i])
    for index in order[k:]:
        group[index]._core.end()
    return [group[index] for index in order[:k]]
