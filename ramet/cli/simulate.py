"""Replay a trace through the real scheduler and prefix tree, in virtual time: no model, no waiting.

The trace is JSON lines: Mooncake's format, or ramet's own (see docs/scheduler.md). Capacities are shares of the
different blocks of all prompts (0.1), or tokens (40000); several, and several policies, make a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.cli.options import block_size, count, positive
from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.protocol.errors import RametError

if TYPE_CHECKING:
    from ramet.runtime.scheduler.simulate import Options, Report
    from ramet.runtime.scheduler.trace import TraceRequest

POLICIES = ("lru", "lfu", "slru", "priority")

DEFAULTS = SchedulerConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, help="JSON lines")
    parser.add_argument("--policy", default="lru", help=f"eviction: {', '.join(POLICIES)}, with commas, or all (lru)")
    parser.add_argument("--capacity", default="", help="KV pool: shares (to 1) or tokens, with commas (unlimited)")
    parser.add_argument("--order", choices=("cache-aware", "fcfs", "random"), default="cache-aware")
    parser.add_argument("--no-tree", action="store_true", help="share nothing")
    parser.add_argument("--no-pending", action="store_true", help="do not wait for a prefix that is being computed")
    parser.add_argument("--block-size", type=block_size, default=DEFAULTS.block_size, help="tokens of a block (8)")
    parser.add_argument("--chunk-tokens", type=positive, default=512, help="token budget of a step (512)")
    parser.add_argument("--max-rows", type=positive, default=64, help="requests that run at once (64)")
    parser.add_argument(
        "--concurrency", type=count, default=0, help="requests open at once; 0: as they arrive in the trace (0)"
    )
    parser.add_argument("--limit", type=count, default=0, help="read so many requests (0: all)")
    parser.add_argument("--max-output", type=int, default=-1, help="cut answers to so many tokens (-1: not)")
    parser.add_argument("--prefill-rate", type=positive, default=2500, help="tokens per second of a prefill (2500)")
    parser.add_argument("--step-ms", type=float, default=4.0, help="duration of an empty step (4)")
    parser.add_argument("--bounds", action="store_true", help="also the unbounded and the clairvoyant cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")


def run(arguments: argparse.Namespace) -> int:
    from ramet.runtime.scheduler import optimum, trace
    from ramet.runtime.scheduler.simulate import SimulationStuck, simulate

    try:
        requests = trace.load(arguments.trace, limit=arguments.limit, max_output=arguments.max_output)
        distinct = optimum.distinct_blocks(requests, arguments.block_size) * arguments.block_size
        rows: list[dict[str, Any]] = []
        for capacity in _capacities(arguments.capacity, distinct, requests):
            for policy in _policies(arguments.policy):
                report = simulate(requests, _options(arguments, capacity, policy))
                rows.append(_row(report, capacity / distinct))
                _show(rows)
    except (OSError, trace.BadTrace, SimulationStuck) as error:
        raise RametError(f"{arguments.trace} cannot be replayed: {error}") from error
    result: dict[str, Any] = {"requests": len(requests), "distinct_tokens": distinct, "rows": rows}
    if arguments.bounds:
        result |= _bounds(arguments, requests, distinct)
    if arguments.json:
        print(json.dumps(result))
    return 0


def _policies(text: str) -> list[str]:
    names = list(POLICIES) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise RametError(f"unknown policy {', '.join(unknown)}; choose among {', '.join(POLICIES)}, or all")
    return names


def _capacities(text: str, distinct: int, requests: list[TraceRequest]) -> list[int]:
    """Tokens of the pools to be tried. Without one: all that the trace can ever hold, and what runs at once."""
    if not text:
        return [distinct + sum(sorted((r.tokens + r.output for r in requests), reverse=True)[:64])]
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [-1.0]
    if min(numbers) <= 0:
        raise RametError(f"--capacity {text}: give shares (0 to 1) or tokens, with commas, such as 0.05,0.1,40000")
    return [int(number * distinct) if number <= 1 else int(number) for number in numbers]


def _options(arguments: argparse.Namespace, capacity: int, policy: Any) -> Options:
    from ramet.runtime.protocol.config import Switches
    from ramet.runtime.scheduler.simulate import Options
    from ramet.runtime.scheduler.virtual import Speed

    config = SchedulerConfig(
        block_size=arguments.block_size,
        chunk_tokens=arguments.chunk_tokens,
        max_rows=arguments.max_rows,
        policy=policy,
        max_queued=1 << 30,
        plan_depth=1,
        switches=Switches(tree=not arguments.no_tree, pending=not arguments.no_pending, order=arguments.order),
    )
    speed = Speed(step_s=arguments.step_ms / 1000, token_s=1 / arguments.prefill_rate)
    return Options(capacity, config, speed=speed, concurrency=arguments.concurrency)


def _row(report: Report, share: float) -> dict[str, Any]:
    import msgspec

    row: dict[str, Any] = msgspec.to_builtins(report)
    return {"share": round(share, 4), **row}


_COLUMNS = (
    ("policy", "policy", "{}"),
    ("pool", "share", "{:.1%}"),
    ("hit rate", "hit_rate", "{:.1%}"),
    ("of blocks", "block_hit_rate", "{:.1%}"),
    ("computed", "computed_tokens", "{}"),
    ("again", "recomputed_tokens", "{}"),
    ("evicted", "evictions", "{}"),
    ("pushed back", "preemptions", "{}"),
    ("overtakes", "overtakes", "{}"),
    ("waste", "waste", "{:.2%}"),
    ("refused", "refused", "{}"),
    ("seconds", "seconds", "{:.0f}"),
)


def _show(rows: list[dict[str, Any]]) -> None:
    """The last row as a line of a table, under a heading if it is the first."""
    if len(rows) == 1:
        print("  ".join(f"{title:>12}" for title, _, _ in _COLUMNS))
    print("  ".join(f"{form.format(rows[-1][key]):>12}" for _, key, form in _COLUMNS))
    sys.stdout.flush()


def _bounds(arguments: argparse.Namespace, requests: list[TraceRequest], distinct: int) -> dict[str, Any]:
    from ramet.runtime.scheduler import optimum

    size = arguments.block_size
    structural = optimum.structural(requests, size)
    print(f"unbounded cache, one request after another: {structural:.1%} of the tokens")
    clairvoyant = {}
    for capacity in _capacities(arguments.capacity, distinct, requests):
        share = optimum.clairvoyant(requests, capacity // size, size)
        clairvoyant[str(capacity)] = share
        print(f"a cache of {capacity} tokens that knows the future: {share:.1%} of the blocks")
    return {"structural": structural, "clairvoyant": clairvoyant}
