"""One child process: started as ``python -m module config``, watched by its pulse, ended within a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.runtime.protocol.pulse import LOADING, PulseState, read_pulse


@dataclass(frozen=True)
class ChildCommand:
    """``role`` names its log and its pulse; ``arguments`` follow the interpreter."""

    role: str
    arguments: tuple[str, ...]


class Child:
    """A session of its own, so that Ctrl-C at the terminal reaches the parent alone. Its working directory is the run
    directory: what lies in the caller's own must not shadow modules of the child. ``on_exit`` is called on a thread."""

    def __init__(self, command: ChildCommand, run_dir: Path, on_exit: Callable[[], None]) -> None:
        self.role = command.role
        self._pulse = run_dir / f"{command.role}.pulse"
        self._pulse.unlink(missing_ok=True)
        with (run_dir / f"{command.role}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=run_dir,
                env=child_environment(os.environ.get("PYTHONPATH", "")),
                start_new_session=True,
            )
        if hasattr(os, "waitid"):  # elsewhere the supervisor's next look finds out
            threading.Thread(target=_await_exit, args=(self.pid, on_exit), name="ramet-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    @property
    def pulse(self) -> PulseState | None:
        return read_pulse(self._pulse)

    @property
    def ready(self) -> bool:
        """It has done with loading."""
        pulse = self.pulse
        return pulse is not None and pulse.phase != LOADING

    def terminate(self) -> None:
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and whatever it has started."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float) -> bool:
        """True if it has ended within the time."""
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True


def _await_exit(pid: int, on_exit: Callable[[], None]) -> None:
    with contextlib.suppress(ChildProcessError):  # reaped in between
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    on_exit()


def child_environment(python_path: str) -> dict[str, str]:
    """The parent's, with a module path that means the same from another directory."""
    parts: Sequence[str] = [os.path.abspath(part) for part in python_path.split(os.pathsep) if part]
    environment = dict(os.environ)
    if parts:
        environment["PYTHONPATH"] = os.pathsep.join(parts)
    return environment


def describe_exit(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"
    return f"ended with exit code {code}"
