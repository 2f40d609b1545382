"""One picture: wall time by workload and target, with the spread of the repetitions, and the floor where known."""

from __future__ import annotations

from pathlib import Path

from ramet.bench.results import Report
from ramet.runtime.protocol.errors import InvalidRequest

_KINDS = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Before anything is measured: raises InvalidRequest if no picture can be made."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidRequest(
            "--plot needs matplotlib, which is not installed: pip install matplotlib, or leave --plot out and keep the "
            "output of --json (ramet bench --measured FILE --plot draws it later)",
            param="plot",
        )
    if path.suffix not in _KINDS:
        raise InvalidRequest(f"--plot {path}: the name must end in one of {', '.join(_KINDS)}", param="plot")
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"--plot {path}: the folder {path.absolute().parent} does not exist", param="plot")


def draw(report: Report, path: Path) -> None:
    """Bars are medians, whiskers the lowest and highest repetition, dashes the floor. Logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [workload.name for workload in report.workloads]
    figure, axes = pyplot.subplots(figsize=(2 + 1.3 * len(names), 4.2), constrained_layout=True)
    width = 0.8 / max(1, len(report.targets))
    for index, target in enumerate(report.targets):
        places, middles, below, above = [], [], [], []
        for place, name in enumerate(names):
            series = report.of(name, target.name)
            wall = series.figure("wall_s") if series is not None else None
            if series is not None and wall is not None:
                walls = [run.wall_s for run in series.runs]
                places.append(place - 0.4 + (index + 0.5) * width)
                middles.append(wall)
                below.append(wall - min(walls))
                above.append(max(walls) - wall)
        bars = axes.bar(places, middles, 0.92 * width, yerr=(below, above), capsize=2, label=target.name)
        axes.bar_label(bars, [f"{value:.3g}" for value in middles], fontsize=7, padding=2)
    floors = {floor.workload: floor.total_s for floor in report.floors if floor.total_s}
    for number, place in enumerate(place for place, name in enumerate(names) if name in floors):
        level = floors[names[place]]
        axes.hlines(level, place - 0.42, place + 0.42, "black", "dashed", label="floor" if not number else None)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="y", which="both", labelsize=7)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("seconds, median and range")
    axes.set_title(f"{report.model}\n{report.machine}", fontsize=9)
    lows = [*floors.values(), *(run.wall_s for series in report.series for run in series.runs)]
    axes.margins(y=0.15)
    axes.set_ylim(bottom=min((low for low in lows if low), default=1.0) / 2)
    axes.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
