"""Hit rates of programs: ``python benchmarks/hit_rates.py`` prints the table of ``docs/scheduler.md``.

Every program is replayed through the real scheduler (``ramet simulate``), all of its calls offered at once as far as
they do not wait for each other. Beside the measured share stands what an unbounded cache gives that serves the calls
one after another (``optimum``), and the share expected from the literature's structure.
"""

from __future__ import annotations

import argparse
import json

import msgspec
from programs import PROGRAMS, requests_of
from ramet.runtime.protocol.config import SchedulerConfig, Switches
from ramet.runtime.scheduler.optimum import distinct_tokens, structural
from ramet.runtime.scheduler.simulate import Options, Report, simulate
from ramet.runtime.scheduler.trace import TraceRequest

ABLATIONS = {
    "all on": Switches(),
    "first come": Switches(order="fcfs"),
    "random order": Switches(order="random"),
    "no pending": Switches(pending=False),
    "no tree": Switches(tree=False),
}


def replay(
    requests: list[TraceRequest], block_size: int, pool: int, switches: Switches, policy: str, rows: int
) -> Report:
    config = msgspec.structs.replace(
        SchedulerConfig(block_size=block_size, max_rows=rows, plan_depth=1),
        switches=switches,
        policy=policy,
    )
    return simulate(requests, Options(pool, config))


def half(requests: list[TraceRequest], rows: int) -> int:
    """Half the working set, and never less than the largest request needs with another beside it."""
    longest = max(r.tokens + r.output for r in requests)
    return max(distinct_tokens(requests) // 2, 2 * longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--policy", default="lru")
    parser.add_argument("--only", default="", help="names of programs, with commas")
    parser.add_argument("--half", action="store_true", help="cache at half the working set, with the ablations")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    sums: dict[str, float] = {}
    for row, program, expected_1, expected_16 in PROGRAMS:
        if arguments.only and program.__name__ not in arguments.only.split(","):
            continue
        requests = requests_of(program)
        line: dict[str, object] = {"row": row, "program": program.__name__}
        if arguments.half:
            best = structural(requests)
            line["optimum"] = best
            for name, switches in ABLATIONS.items():
                share = replay(
                    requests, 16, half(requests, arguments.rows), switches, arguments.policy, arguments.rows
                ).hit_rate
                line[name] = share
                if best > 0:
                    sums[name] = sums.get(name, 0.0) + share / best
                    sums[f"count {name}"] = sums.get(f"count {name}", 0.0) + 1
        else:
            pool = 2 * sum((r.tokens + r.output) * r.n for r in requests) + 16 * 1024
            line |= {"expected 1": expected_1, "optimum 1": structural(requests)}
            line["measured 1"] = replay(requests, 1, pool, Switches(), arguments.policy, arguments.rows).hit_rate
            line |= {"expected 16": expected_16, "optimum 16": structural(requests, 16)}
            line["measured 16"] = replay(requests, 16, pool, Switches(), arguments.policy, arguments.rows).hit_rate
        rows.append(line)
        if not arguments.json:
            if len(rows) == 1:
                print(" | ".join(line))
            print(
                " | ".join(f"{v:.3f}" if isinstance(v, float) else "-" if v is None else str(v) for v in line.values())
            )
    means = {name: sums[name] / sums[f"count {name}"] for name in ABLATIONS if name in sums}
    if means and not arguments.json:
        print("mean of optimum: " + ", ".join(f"{name} {value:.3f}" for name, value in means.items()))
    if arguments.json:
        print(json.dumps({"rows": rows, "mean_of_optimum": means}))


if __name__ == "__main__":
    main()
