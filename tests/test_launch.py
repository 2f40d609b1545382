"""The launcher with scripted children: ready, restarted, given up, ended; from any thread, and when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ramet.runtime.launch import Launcher, LaunchFailed
from ramet.runtime.launch.child import ChildCommand, child_environment
from ramet.runtime.protocol.config import RuntimeConfig, WorkerConfig

CHILD = str(Path(__file__).with_name("launch_child.py"))


def commands(scheduler: str = "good", worker: str = "good") -> Callable[[RuntimeConfig], Sequence[ChildCommand]]:
    return lambda config: [
        ChildCommand("scheduler", (CHILD, "scheduler", scheduler, config.to_json())),
        ChildCommand("worker", (CHILD, "worker", worker, config.to_json())),
    ]


def launcher(scheduler: str = "good", worker: str = "good", **options: object) -> Launcher:
    return Launcher(RuntimeConfig(model="", run_dir=""), commands=commands(scheduler, worker), **options)  # type: ignore[arg-type]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def test_start_and_stop_leave_nothing() -> None:
    with launcher() as started:
        status = started.status()
        assert status.state == "ready"
        pids = [child.pid for child in status.children]
        assert all(os.getpgid(pid) != os.getpgid(0) for pid in pids), "Ctrl-C is for the parent alone"
        assert started.config.parent_pid == os.getpid()
        run_dir = Path(started.config.run_dir)
        assert run_dir.exists()
        began = time.monotonic()
    assert time.monotonic() - began < 1
    assert not any(map(runs, pids)) and not run_dir.exists()
    assert started.status().state == "stopped"
    started.stop()


def test_what_cannot_start_says_why_and_leaves_nothing() -> None:
    failing = launcher(worker="fails")
    with pytest.raises(LaunchFailed, match=r"worker process ended with exit code 1.*\n(.*\n)*.*no such model"):
        failing.start()
    assert not Path(failing.config.run_dir).exists()
    assert failing.status().state == "failed"


def test_a_pool_for_nothing_is_refused_with_the_least() -> None:
    for tokens in (1, 8, 255):
        config = RuntimeConfig(model="", run_dir="", worker=WorkerConfig(kv_tokens=tokens))
        with pytest.raises(LaunchFailed, match=rf"pool of {tokens} tokens.*--kv-tokens 256 or more"):
            Launcher(config, commands=commands()).start()
    with Launcher(RuntimeConfig("", "", worker=WorkerConfig(kv_tokens=256)), commands=commands()) as started:
        assert started.status().state == "ready"


def test_a_start_that_takes_too_long_names_who_is_late() -> None:
    with pytest.raises(LaunchFailed, match=r"not ready after 1 s: worker"):
        launcher(worker="slow", start_timeout_s=1.0).start()


@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_a_killed_child_is_restarted_at_once(role: str) -> None:
    with launcher() as started:
        for kill in range(1, 4):
            child = next(c for c in started.status().children if c.role == role)
            os.kill(child.pid, signal.SIGKILL)

            def back(kill: int = kill) -> bool:
                status = started.status()
                child = next(c for c in status.children if c.role == role)
                return child.restarts == kill and status.state == "ready"

            until(back)
        child = next(c for c in started.status().children if c.role == role)
        assert "SIGKILL" in child.last_exit


def test_a_hung_child_is_killed_and_restarted() -> None:
    with launcher(worker="hangs") as started:
        until(lambda: started.status().children[1].restarts == 1, timeout_s=12)
        assert "no progress" in started.status().children[1].last_exit
        until(lambda: started.status().state == "ready")


def test_a_crash_loop_is_given_up_with_its_reason_and_all_children_end(caplog: pytest.LogCaptureFixture) -> None:
    reasons: list[str] = []
    failing = launcher(worker="fails-later", on_failure=lambda reason: (reasons.append(reason), failing.stop())[0])
    failing.start()
    pids = [child.pid for child in failing.status().children]
    os.kill(pids[1], signal.SIGKILL)
    until(lambda: bool(reasons))
    assert "the disk is gone" in reasons[0]
    assert any("the disk is gone" in record.message for record in caplog.records if record.levelname == "ERROR")
    assert failing.status().state == "failed" and failing.status().failure == reasons[0]
    assert not any(map(runs, pids))
    failing.stop()
    assert not Path(failing.config.run_dir).exists()


def test_children_that_will_not_end_are_killed_within_three_seconds() -> None:
    started = launcher(scheduler="stubborn", worker="stubborn").start()
    pids = [child.pid for child in started.status().children]
    began = time.monotonic()
    started.stop()
    assert time.monotonic() - began < 3.2
    assert not any(map(runs, pids))


def test_it_may_be_started_on_one_thread_and_stopped_on_another() -> None:
    """Also: children outlive the thread that called start."""
    started = launcher()
    thread = threading.Thread(target=started.start)
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert started.status().state == "ready"
    stoppers = [threading.Thread(target=started.stop) for _ in range(3)]
    for stopper in stoppers:
        stopper.start()
    for stopper in stoppers:
        stopper.join(5)
        assert not stopper.is_alive()
    assert started.status().state == "stopped"


PARENT = """
import sys, time
sys.path.insert(0, {tests!r})
from test_launch import launcher
started = launcher(worker={worker!r})
print("starting", flush=True)
try:
    started.start()
    print(*[c.pid for c in started.status().children], started.config.run_dir, flush=True)
    {body}
finally:
    print("left", flush=True)
"""


def parent(tmp_path: Path, body: str, worker: str = "good") -> subprocess.Popen[str]:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(tests=str(Path(__file__).parent), body=body, worker=worker))
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment(os.environ.get("PYTHONPATH", "")),
    )


def family(process: subprocess.Popen[str]) -> tuple[list[int], Path]:
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    *pids, run_dir = process.stdout.readline().split()
    return [int(pid) for pid in pids], Path(run_dir)


def test_kill_9_of_the_parent_leaves_no_child(tmp_path: Path) -> None:
    process = parent(tmp_path, "time.sleep(60)")
    pids, _ = family(process)
    assert all(map(runs, pids))
    process.kill()
    process.wait()
    until(lambda: not any(map(runs, pids)), timeout_s=5)


@pytest.mark.parametrize("body", ["pass", "raise ValueError", "sys.exit(3)"])
def test_a_parent_that_just_leaves_ends_its_children(tmp_path: Path, body: str) -> None:
    process = parent(tmp_path, body)
    pids, run_dir = family(process)
    process.wait(10)
    until(lambda: not any(map(runs, pids)), timeout_s=5)
    assert not run_dir.exists()


def test_ctrl_c_ends_everything_also_while_loading(tmp_path: Path) -> None:
    process = parent(tmp_path, "time.sleep(60)")
    pids, run_dir = family(process)
    process.send_signal(signal.SIGINT)
    process.wait(10)
    assert not any(map(runs, pids)) and not run_dir.exists()
    process = parent(tmp_path, "pass", worker="slow")
    assert process.stdout is not None and process.stdout.readline() == "starting\n"
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    process.wait(10)
    assert process.stdout.read() == "left\n"
    assert process.returncode != 0


def test_modules_in_the_working_directory_do_not_shadow_the_childrens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", child_environment(os.environ.get("PYTHONPATH", "")).get("PYTHONPATH", ""))
    (tmp_path / "ramet.py").write_text("raise ImportError('shadowed')")
    (tmp_path / "signal.py").write_text("raise ImportError('shadowed')")
    monkeypatch.chdir(tmp_path)
    with launcher() as started:
        assert started.status().state == "ready"
