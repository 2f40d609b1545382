"""When a child is restarted, given up, or taken for hung."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ramet.runtime.launch.child import child_environment
from ramet.runtime.launch.policy import HangWatch, RestartPolicy
from ramet.runtime.launch.rundir import RunDir
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.pulse import BUSY, IDLE, LOADING, Pulse, PulseState, read_pulse


def looks_until_hung(watch: HangWatch, state: PulseState | None, look_s: float, limit: int = 10_000) -> int | None:
    return next((n for n in range(limit) if watch.hangs(state, look_s)), None)


def test_a_busy_child_without_progress_hangs_after_five_seconds_or_thirty_steps() -> None:
    assert looks_until_hung(HangWatch(1.0), PulseState(7, BUSY, 0.01), 0.5) == 11
    assert looks_until_hung(HangWatch(1.0), PulseState(7, BUSY, 1.0), 0.5) == 61


@pytest.mark.parametrize("state", [None, PulseState(7, IDLE, 0.0), PulseState(7, LOADING, 0.0)])
def test_idle_and_loading_children_never_hang(state: PulseState | None) -> None:
    assert looks_until_hung(HangWatch(1.0), state, 0.5) is None


def test_progress_starts_the_time_anew() -> None:
    watch = HangWatch(1.0)
    assert not any(watch.hangs(PulseState(n // 8, BUSY, 0.0), 0.5) for n in range(1000))


def test_a_watcher_that_was_stopped_does_not_blame_the_child() -> None:
    watch = HangWatch(0.2)
    state = PulseState(7, BUSY, 0.0)
    assert not watch.hangs(state, 0.05) and not watch.hangs(state, 3600.0)


def test_ten_kills_under_load_are_survived() -> None:
    policy = RestartPolicy()
    assert [policy.died(t * 0.5, was_ready=True) for t in range(10)] == [0.0] * 10


def test_a_child_that_never_gets_ready_is_given_up_after_growing_pauses() -> None:
    policy = RestartPolicy()
    delays = [policy.died(float(t), was_ready=False) for t in range(5)]
    assert delays[-1] is None
    pauses = [d for d in delays[:-1] if d is not None]
    assert len(pauses) == 4 and pauses == sorted(pauses)


def test_endless_deaths_are_given_up_and_rare_ones_never() -> None:
    policy = RestartPolicy()
    assert None in [policy.died(t * 0.1, was_ready=True) for t in range(100)]
    patient = RestartPolicy()
    assert None not in [patient.died(t * 10.0, was_ready=True) for t in range(100)]


def test_the_run_directory_is_private_and_goes_away() -> None:
    run_dir = RunDir()
    assert stat.S_IMODE(run_dir.path.stat().st_mode) == 0o700
    (run_dir.path / "worker.log").write_text("\n".join(map(str, range(50))))
    assert run_dir.last_lines("worker", 2) == "48\n49"
    run_dir.remove()
    assert not run_dir.path.exists()


def test_a_directory_that_was_there_keeps_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    (tmp_path / "worker.log").write_text("x")
    run_dir = RunDir(str(tmp_path))
    run_dir.remove()
    assert [f.name for f in tmp_path.iterdir()] == ["mine.txt"]


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RametError, match="shorter run_dir"):
        RunDir(str(tmp_path / ("x" * 100)))


def test_leftovers_of_dead_processes_are_removed() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "from ramet.runtime.launch.rundir import RunDir; print(RunDir().path)"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env=child_environment(os.environ.get("PYTHONPATH", "")),
    )
    left = Path(made.stdout.strip())
    assert left.exists()
    RunDir().remove()
    assert not left.exists()


def test_the_pulse_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "worker.pulse"
    assert read_pulse(path) is None
    pulse = Pulse(path)
    assert read_pulse(path) == PulseState(0, LOADING, 0.0)
    pulse.busy(0.25)
    assert read_pulse(path) == PulseState(1, BUSY, 0.25)
    pulse.idle()
    assert read_pulse(path) == PulseState(2, IDLE, 0.0)


def test_the_end_of_a_long_log_is_read_alone(tmp_path: Path) -> None:
    run_dir = RunDir(str(tmp_path))
    with run_dir.log("worker").open("wb") as file:
        file.truncate(1 << 36)  # sparse: reading it whole would take the machine's memory
        file.seek(0, os.SEEK_END)
        file.write(b"\none\ntwo\n")
    assert run_dir.last_lines("worker", 2) == "one\ntwo" and run_dir.last_lines("scheduler") == ""
