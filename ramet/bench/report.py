"""Tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.bench.results import Floor, Rates, Report, Series, WorkloadInfo, middle

_HEAD = (
    "target",
    "wall s [min-max]",
    "gen tok/s",
    "TTFT ms mean / p99",
    "ITL ms",
    "cached",
    "CPU s",
    "other CPU s",
    "PSS MiB",
    "errors",
    "valid",
    "same text",
    "ratio",
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that are "-" throughout are left out."""
    keep = [column for column in range(len(head)) if any(row[column] != "-" for row in rows)]
    lines = [[line[column] for column in keep] for line in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if not index else cell.rjust(width) for index, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def describe(report: Report) -> str:
    """All workloads, then what the machine can do, as far as each was measured."""
    parts = [workload_table(report, workload) for workload in report.workloads]
    if report.rates is not None:
        parts.append(rates_text(report.rates))
        parts += decoding(report)
    return "\n\n".join(parts)


def workload_table(report: Report, workload: WorkloadInfo) -> str:
    every = [series for target in report.targets if (series := report.of(workload.name, target.name)) is not None]
    lines = [f"{workload.name}  {workload.title}", table(_HEAD, [_row(series, every[0]) for series in every])]
    for series in every:
        first = next((run.first_error for run in series.runs if run.errors), "")
        if first:
            lines.append(f"{series.target}: {first}")
    return "\n".join(lines)


def _row(series: Series, first: Series) -> list[str]:
    walls = [run.wall_s for run in series.runs]
    wall, first_wall = middle(walls), middle(run.wall_s for run in first.runs)
    requests = sum(run.requests for run in series.runs)
    ttft = (number(series.figure("ttft_mean_ms"), 0), number(series.figure("ttft_p99_ms"), 0))
    return [
        series.target,
        f"{number(wall, 2)} [{min(walls):.2f}-{max(walls):.2f}]",
        number(series.tokens_per_s),
        "-" if ttft == ("-", "-") else " / ".join(ttft),
        number(series.figure("itl_ms"), 2),
        _percent(series.cached_share),
        number(series.figure("cpu_s")),
        number(series.figure("other_cpu_s")),
        number(series.figure("peak_pss_mib"), 0),
        str(series.errors) if series.errors else "0",
        _share(sum(run.valid or 0 for run in series.runs), requests) if series.runs[0].valid is not None else "-",
        _share(sum(run.same_text or 0 for run in series.runs), requests)
        if series.runs[0].same_text is not None
        else "-",
        f"{wall / first_wall:.2f}" if wall and first_wall and series.target != first.target else "-",
    ]


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def rates_text(rates: Rates) -> str:
    def span(figures: tuple[float, float, float]) -> str:
        return f"{figures[1]:.1f} GB/s [{figures[0]:.1f}-{figures[2]:.1f}]"

    origin = "estimated from f32: torch is not installed" if rates.estimated else "torch"
    return "\n".join(
        (
            f"this machine, {rates.cores} cores: median [lowest-highest]",
            f"  read of {rates.large_bytes >> 20} MiB  {span(rates.read_large)}",
            f"  read of {rates.small_bytes >> 20} MiB  {span(rates.read_small)}",
            f"  matrix product, f32 {number(rates.f32_gflops, 0)}, bf16 {number(rates.bf16_gflops, 0)} GFLOP/s, "
            f"int8 {number(rates.int8_gops, 0)} GOP/s (bf16 and int8: {origin})",
        )
    )


def decoding(report: Report) -> list[str]:
    """Beside W1: how much of the read bandwidth one stream of decoding reaches."""
    lines = []
    for target in report.targets:
        series = report.of("W1", target.name)
        itl = series.figure("itl_ms") if series is not None else None
        if itl and report.rates is not None:
            used = report.weight_bytes / itl / 1e6
            large, small = report.rates.read_large[1], report.rates.read_small[1]
            lines.append(
                f"{target.name}: W1 decodes at {itl:.2f} ms a token; {report.weight_bytes / 1e6:.1f} MB of weights "
                f"each make {used:.1f} GB/s, {100 * used / large:.0f} % of the read bandwidth "
                f"({100 * used / small:.0f} % of that of the small buffer)"
            )
    return lines


def floor_table(report: Report) -> str:
    """What each workload is made of, beside what was measured."""
    head = [
        "",
        "prompt computed/all",
        "steps x rows",
        "weights GB",
        "KV GB",
        "linear Gop",
        "attention GFLOP",
        "prefill s",
        "decode: memory s",
        "compute s",
        "floor s",
        *(f"{target.name} s (x floor)" for target in report.targets),
    ]
    rows = [_floor_row(floor, report) for floor in report.floors]
    return table(head, rows)


def _floor_row(floor: Floor, report: Report) -> list[str]:
    row = [
        floor.workload,
        f"{floor.prefill_tokens:,}/{floor.prompt_tokens:,}",
        f"{floor.steps} x {floor.rows}",
        number(floor.weight_bytes / 1e9, 2),
        number(floor.kv_bytes / 1e9, 2),
        number(floor.linear_ops / 1e9, 0),
        number(floor.attention_ops / 1e9, 0),
        number(floor.prefill_s, 2),
        number(floor.memory_s, 2),
        number(floor.compute_s, 2),
        number(floor.total_s, 2),
    ]
    for target in report.targets:
        series = report.of(floor.workload, target.name)
        wall = series.figure("wall_s") if series is not None else None
        ratio = f" ({wall / floor.total_s:.1f})" if wall and floor.total_s else ""
        row.append(number(wall, 2) + ratio)
    return row
