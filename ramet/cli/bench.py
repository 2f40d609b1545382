"""Measure servers with six workloads, beside each other and beside what this machine can do.

ramet bench --serve                                   measure ramet itself
ramet bench --serve --url peer=http://127.0.0.1:8080  beside another server; repetitions alternate
ramet bench --serve ramet= --serve "int8=--kv-dtype int8" --workload W3
ramet bench --machine                                 read bandwidth and matrix rates of this machine
ramet bench floor --serve                             what the floor of each workload is made of
ramet bench floor --measured FILE                     the same for figures that --json printed before
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.machine import look
from ramet.cli.options import add_model_option, positive
from ramet.runtime.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.bench.floor import Model
    from ramet.bench.replay import Target
    from ramet.bench.results import Rates, Report, Series
    from ramet.bench.workloads import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("floor",), help="floor: print the table of floors as well")
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="NAME=http://...",
        help="an OpenAI-compatible server; may be given several times",
    )
    parser.add_argument(
        "--serve",
        action="append",
        nargs="?",
        const="",
        default=[],
        metavar="[NAME=]FLAGS",
        help="start 'ramet serve' with these flags, and end it; may be given several times",
    )
    parser.add_argument("--workload", default="", metavar="W1,W3", help="these only (all six)")
    parser.add_argument("--reps", type=positive, default=3, help="repetitions of each workload and target (3)")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the salts; one that was used lately finds warm caches"
    )
    parser.add_argument("--timeout", type=float, default=900.0, metavar="S", help="for one request (900)")
    parser.add_argument("--served-model", default="", metavar="NAME", help="name to ask --url for (the first it lists)")
    parser.add_argument("--machine", action="store_true", help="measure what this machine can do")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="measure nothing: read a report of --json")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object in the last line")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw wall times (needs matplotlib)")
    add_model_option(parser)


def run(arguments: argparse.Namespace) -> int:
    import msgspec

    from ramet.bench import plot, report

    _check(arguments)
    result = _read(arguments) if arguments.measured else _measure(arguments)
    print(report.describe(result))
    if arguments.what == "floor":
        print("\n" + report.floor_table(result))
    if arguments.plot:
        plot.draw(result, arguments.plot)
        print(f"\ndrawn: {arguments.plot}")
    if arguments.json:
        print(msgspec.json.encode(result).decode())
    return 1 if any(series.errors for series in result.series) else 0


def _check(arguments: argparse.Namespace) -> None:
    """What can be known to be wrong before anything is started."""
    from ramet.bench import plot

    targets = bool(arguments.url or arguments.serve)
    if arguments.measured and targets:
        raise InvalidRequest("--measured reads a report: leave out --url and --serve", param="measured")
    if not (targets or arguments.measured or arguments.machine or arguments.what):
        raise InvalidRequest(
            "nothing to measure: give --serve, --url NAME=http://..., --machine, or floor", param="serve"
        )
    _names(arguments.workload)
    if arguments.plot:
        plot.check(arguments.plot)


def _names(text: str) -> tuple[str, ...]:
    from ramet.bench.workloads import NAMES

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in NAMES:
            raise InvalidRequest(f"--workload {name!r}: the workloads are {', '.join(NAMES)}", param="workload")
    return names


def _model(name: str) -> Model:
    from ramet.bench import weights
    from ramet.bench.floor import Model
    from ramet.runtime import store
    from ramet.runtime.tokenizer import Tokenizer

    folder = store.resolve(name)
    return Model(folder.meta, Tokenizer.load(folder), weights.look(folder))


def _rates() -> Rates:
    from ramet.bench import machine

    here = look()
    print("measuring this machine ...", file=sys.stderr, flush=True)
    return machine.measure(here.cores, here.flags, here.free_memory)


def _read(arguments: argparse.Namespace) -> Report:
    import msgspec

    from ramet.bench.results import load
    from ramet.bench.workloads import build

    result = load(arguments.measured)
    if arguments.machine or (arguments.what and result.rates is None):
        result = msgspec.structs.replace(result, rates=_rates())
    if arguments.what:
        model = _model(arguments.model)
        if model.meta.name != result.model:
            raise InvalidRequest(
                f"{arguments.measured} was measured with {result.model}, not {model.meta.name}: give that --model",
                param="model",
            )
        wanted = _names(arguments.workload) or tuple(workload.name for workload in result.workloads)
        workloads = build(model.tokenizer, wanted)
        for measured in result.workloads:
            if measured.name in workloads and workloads[measured.name].digest != measured.digest:
                print(
                    f"note: {measured.name} was measured with other texts than this machine has (other packages are "
                    "installed); its floor may differ by a few tokens",
                    file=sys.stderr,
                )
        result = _with_floors(result, model, workloads)
    return result


def _measure(arguments: argparse.Namespace) -> Report:
    from ramet.bench.replay import warm_up
    from ramet.bench.results import Report, TargetInfo, WorkloadInfo
    from ramet.bench.workloads import build

    here = look()
    mine, theirs = _targets(arguments)
    model = _model(arguments.model)
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000_007
    rates = _rates() if arguments.machine or arguments.what else None
    workloads = build(model.tokenizer, _names(arguments.workload))
    targets: list[Target] = []
    series: list[Series] = []
    if mine or theirs:
        with contextlib.ExitStack() as stack:
            targets = [*_served(mine, arguments.model, stack), *theirs]
            for target in targets:
                warm_up(target, arguments.timeout)
            series = _repeat(targets, list(workloads.values()), arguments.reps, random.Random(seed), arguments.timeout)
    result = Report(
        version=_version(),
        time=time.strftime("%Y-%m-%d %H:%M:%S"),
        machine=f"{here.cpu} ({here.cores} cores)",
        model=model.meta.name,
        weight_bytes=model.weights.bytes_per_step,
        seed=seed,
        repetitions=arguments.reps,
        targets=tuple(TargetInfo(each.name, each.url, each.model, each.pid, each.flags) for each in targets),
        workloads=tuple(
            WorkloadInfo(each.name, each.title, each.requests, each.max_tokens, each.digest)
            for each in workloads.values()
            if targets
        ),
        series=tuple(series),
        rates=rates,
    )
    return _with_floors(result, model, workloads) if arguments.what else result


def _targets(arguments: argparse.Namespace) -> tuple[list[tuple[str, list[str]]], list[Target]]:
    """(name and flags of each server to start, servers that are there). Those to start come first in the tables."""
    from ramet.bench.targets import connect, parse_serve, parse_url

    mine = [parse_serve(text, position) for position, text in enumerate(arguments.serve)]
    theirs = [parse_url(text) for text in arguments.url]
    names = [name for name, _ in (*mine, *theirs)]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InvalidRequest(f"two targets are called {double!r}: give names, as in NAME=...", param="url")
    return mine, [connect(name, url, model=arguments.served_model) for name, url in theirs]


def _served(mine: list[tuple[str, list[str]]], model: str, stack: contextlib.ExitStack) -> list[Target]:
    from ramet.bench.targets import served

    targets = []
    for name, flags in mine:
        print(f"starting ramet serve for {name} ...", file=sys.stderr, flush=True)
        targets.append(stack.enter_context(served(name, flags, model=model)))
    return targets


def _repeat(
    targets: list[Target], workloads: list[Workload], reps: int, draw: random.Random, timeout_s: float
) -> list[Series]:
    """Workload by workload, repetition by repetition, target by target: what drifts on the machine hits all alike."""
    import msgspec

    from ramet.bench.replay import replay
    from ramet.bench.results import Run, Series
    from ramet.bench.workloads import salt

    series = []
    for workload in workloads:
        runs: dict[str, list[Run]] = {target.name: [] for target in targets}
        for repetition in range(reps):
            fresh = salt(draw)
            first: list[str] | None = None
            for target in targets:
                done = replay(target, workload, fresh, timeout_s)
                run = done.run
                if first is None:
                    first = done.texts
                else:
                    same = sum(a == b for a, b in zip(first, done.texts, strict=True))
                    run = msgspec.structs.replace(run, same_text=same)
                runs[target.name].append(run)
                problem = f", {run.errors} errors: {run.first_error}" if run.errors else ""
                print(
                    f"{workload.name} {repetition + 1}/{reps} {target.name}: {run.wall_s:.2f} s{problem}",
                    file=sys.stderr,
                    flush=True,
                )
        series += [Series(workload.name, target.name, tuple(runs[target.name])) for target in targets]
    return series


def _with_floors(result: Report, model: Model, workloads: dict[str, Workload]) -> Report:
    import msgspec

    from ramet.bench.floor import floor

    floors = []
    for workload in workloads.values():
        first = result.of(workload.name, result.targets[0].name) if result.targets else None
        total = first.figure("new_tokens") if first is not None and workload.structured else None
        new = total / workload.requests if total else None
        floors.append(floor(model, workload, result.rates, new_tokens=new))
    return msgspec.structs.replace(result, floors=tuple(floors))


def _version() -> str:
    try:
        return version("ramet")
    except PackageNotFoundError:
        return "not installed"
