"""What a measurement leaves behind: plain structs, printed as JSON and read back from it. Times in s or ms as named."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct

from ramet.runtime.protocol.errors import InvalidRequest


class Run(Struct, frozen=True, kw_only=True):
    """One repetition of a workload at one target. None: it could not be seen there."""

    wall_s: float
    requests: int
    errors: int
    first_error: str = ""
    prompt_tokens: int
    cached_tokens: int | None = None
    new_tokens: int
    ttft_mean_ms: float | None = None
    ttft_p99_ms: float | None = None
    itl_ms: float | None = None
    """(last text - first text) / (new tokens - 1), mean over requests."""
    gap_p99_ms: float | None = None
    cpu_s: float | None = None
    peak_pss_mib: float | None = None
    other_cpu_s: float | None = None
    steal_s: float | None = None
    valid: int | None = None
    """Answers that follow the schema, where there is one."""
    cut: int | None = None
    """Answers that ended at max_tokens, where there is a schema."""
    same_text: int | None = None
    """Answers equal to the first target's in the same repetition (after the same salt); None for the first target."""
    digest: str = ""
    """Of all answers."""


class Series(Struct, frozen=True):
    workload: str
    target: str
    runs: tuple[Run, ...]

    def figure(self, name: str) -> float | None:
        """Median over the repetitions; None where any of them lacks it."""
        return middle(getattr(run, name) for run in self.runs)

    @property
    def tokens_per_s(self) -> float | None:
        return middle(run.new_tokens / run.wall_s for run in self.runs)

    @property
    def cached_share(self) -> float | None:
        return middle(
            run.cached_tokens / run.prompt_tokens if run.cached_tokens is not None and run.prompt_tokens else None
            for run in self.runs
        )

    @property
    def errors(self) -> int:
        return sum(run.errors for run in self.runs)


class WorkloadInfo(Struct, frozen=True):
    """``digest``: equal where texts and tokeniser are; compare figures of two machines only then."""

    name: str
    title: str
    requests: int
    max_tokens: int
    digest: str


class TargetInfo(Struct, frozen=True):
    """``pid``: root of the process tree that was watched."""

    name: str
    url: str
    model: str
    pid: int | None = None
    flags: str = ""


class Rates(Struct, frozen=True, kw_only=True):
    """What this machine can do, all cores together. Bandwidths: (lowest, median, highest) in GB/s of reading."""

    cores: int
    read_large: tuple[float, float, float]
    large_bytes: int
    read_small: tuple[float, float, float]
    small_bytes: int
    f32_gflops: float | None = None
    bf16_gflops: float | None = None
    int8_gops: float | None = None
    estimated: bool = False
    """bf16 and int8 are multiples of the f32 rate (by the CPU's instruction sets), not measured."""


class Floor(Struct, frozen=True, kw_only=True):
    """The least work that a workload can be done with: each distinct prompt token once, weights once a step."""

    workload: str
    prefill_tokens: int
    prompt_tokens: int
    steps: int
    rows: int
    """Most sequences of a step."""
    weight_bytes: int
    """Read by all decode steps."""
    kv_bytes: int
    """Read by all decode steps, K and V of tokens that rows share once a step."""
    linear_ops: int
    """Multiplications and additions of all matrices, in the type the weights allow."""
    attention_ops: int
    prefill_s: float | None = None
    memory_s: float | None = None
    """Decode: bytes over the read bandwidth."""
    compute_s: float | None = None
    """Decode: operations over their rates."""
    total_s: float | None = None
    """Prefill, and of each decode step the larger of memory and compute."""


class Report(Struct, frozen=True, kw_only=True):
    """``ramet bench --json``."""

    version: str
    time: str
    machine: str
    model: str
    weight_bytes: int
    """Read for each step of decoding."""
    seed: int
    repetitions: int
    targets: tuple[TargetInfo, ...] = ()
    workloads: tuple[WorkloadInfo, ...] = ()
    series: tuple[Series, ...] = ()
    rates: Rates | None = None
    floors: tuple[Floor, ...] = ()

    def of(self, workload: str, target: str) -> Series | None:
        return next((each for each in self.series if (each.workload, each.target) == (workload, target)), None)


def middle(values: Iterable[float | None]) -> float | None:
    """Median; None if a value is missing, or there is none."""
    known = list(values)
    return None if not known or None in known else float(median(value for value in known if value is not None))


def percentile(values: list[float], percent: float) -> float | None:
    """Linear between neighbours; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def load(path: Path) -> Report:
    """A report out of what ``ramet bench --json`` printed: the last line of the file."""
    try:
        lines = path.read_bytes().strip().splitlines()
        return msgspec.json.decode(lines[-1], type=Report)
    except (OSError, IndexError, msgspec.MsgspecError) as error:
        raise InvalidRequest(
            f"{path} holds no report ({error}): give a file with the output of 'ramet bench --json'", param="measured"
        ) from error
