"""The launcher: one object that stands for a running scheduler and worker."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec
from ramet.runtime import store
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig
from ramet.runtime.protocol.errors import RametError

from .child import ChildCommand
from .rundir import RunDir
from .supervisor import ChildStatus, Supervisor

LEAST_KV_TOKENS = 256
"""Below it a pool holds no system text with a question and an answer."""


class LaunchFailed(RametError):
    """A process of the runtime could not be started, or was given up; the message ends with its last log lines."""

    code = "launch_failed"


@dataclass(frozen=True)
class LauncherStatus:
    state: Literal["new", "starting", "ready", "restarting", "failed", "stopped"]
    children: tuple[ChildStatus, ...] = ()
    failure: str = ""


def default_commands(config: RuntimeConfig) -> tuple[ChildCommand, ...]:
    text = config.to_json()
    return tuple(ChildCommand(role, ("-m", f"ramet.runtime.{role}", text)) for role in ("scheduler", "worker"))


class Launcher:
    """``config.run_dir`` and ``parent_pid`` may be left empty; ``launcher.config`` has them filled in once started.

    Usable from any thread, from signal handlers, and as a context manager. Children are restarted when they die or
    hang; when one is given up, ``on_failure`` is called with the reason, on a thread of the launcher's. At the
    interpreter's exit everything is ended; children also end when this process is killed.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        *,
        start_timeout_s: float = 300.0,
        on_failure: Callable[[str], object] | None = None,
        commands: Callable[[RuntimeConfig], Sequence[ChildCommand]] = default_commands,
    ) -> None:
        self.config = config
        self._start_timeout_s = start_timeout_s
        self._on_failure = on_failure
        self._commands = commands
        self._lock = threading.RLock()
        self._run_dir: RunDir | None = None
        self._supervisor: Supervisor | None = None
        self._stopped = False
        self._owner = os.getpid()
        self._at_exit: Callable[[], None] | None = None

    def start(self) -> Launcher:
        """Start the children and wait until they are ready. Raises LaunchFailed; nothing is left running then."""
        with self._lock:
            if self._supervisor is not None:
                raise RametError("this launcher was started before; make a new one")
            _check_pool(self.config.worker.kv_tokens)
            model = str(Path(self.config.model).absolute()) if self.config.model else ""
            scheduler = _with_context(self.config.scheduler, model)
            self._run_dir = RunDir(self.config.run_dir)
            self.config = msgspec.structs.replace(
                self.config,
                run_dir=str(self._run_dir.path),
                parent_pid=os.getpid(),
                model=model,
                scheduler=scheduler,
            )
            self._supervisor = Supervisor(self._commands(self.config), self._run_dir, self._failed)
            self._at_exit = _stop_at_exit(self)
            self._supervisor.start()
        try:
            settled = self._supervisor.wait_started(self._start_timeout_s)
            if settled and not self._supervisor.failure and not self._stopped:
                return self
            reason = self._supervisor.failure or self._unready(self._supervisor)
        except BaseException:  # Ctrl-C while the model loads
            self.stop()
            raise
        self.stop()
        raise LaunchFailed(reason)

    def stop(self) -> None:
        """End the children (asked first, killed after 2.5 s) and remove the run directory. Idempotent."""
        if os.getpid() != self._owner:
            return  # a fork of the process that started them
        self._stopped = True
        if self._supervisor is not None and self._supervisor.on_own_thread:
            self._supervisor.stop()  # from on_failure: the children have ended, another thread may hold the lock
            return
        with self._lock:
            if self._supervisor is not None:
                self._supervisor.stop()
            if self._run_dir is not None:
                self._run_dir.remove()
            if self._at_exit is not None:
                atexit.unregister(self._at_exit)

    def status(self) -> LauncherStatus:
        supervisor = self._supervisor
        if supervisor is None:
            return LauncherStatus("new")
        children = supervisor.status()
        if supervisor.failure:
            return LauncherStatus("failed", children, supervisor.failure)
        if self._stopped:
            return LauncherStatus("stopped", children)
        if not supervisor.started:
            return LauncherStatus("starting", children)
        return LauncherStatus("ready" if all(child.ready for child in children) else "restarting", children)

    def logs(self, role: str, lines: int = 20) -> str:
        """The last lines that the scheduler or the worker has logged."""
        return "" if self._run_dir is None else self._run_dir.last_lines(role, lines)

    def __enter__(self) -> Launcher:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _failed(self, reason: str) -> None:
        supervisor = self._supervisor
        if self._on_failure is not None and supervisor is not None and supervisor.started:
            self._on_failure(reason)

    def _unready(self, supervisor: Supervisor) -> str:
        if self._stopped:
            return "the launcher was stopped while it started"
        late = [child.role for child in supervisor.status() if not child.ready]
        lines = "\n".join(f"{role}:\n{self.logs(role)}" for role in late)
        return f"not ready after {self._start_timeout_s:g} s: {', '.join(late)}; the last lines of their logs:\n{lines}"


def _check_pool(kv_tokens: int) -> None:
    """Raises LaunchFailed for a pool that nothing of use fits into."""
    if 0 < kv_tokens < LEAST_KV_TOKENS:
        raise LaunchFailed(
            f"a KV pool of {kv_tokens} tokens was asked for, a short chat alone needs more; give --kv-tokens "
            f"{LEAST_KV_TOKENS} or more, or 0 to have it sized from free memory"
        )


def _with_context(scheduler: SchedulerConfig, model: str) -> SchedulerConfig:
    """The scheduler knows no models, so the context is read here. Raises LaunchFailed for one beyond the model's."""
    if not model:
        return scheduler
    own = store.open(Path(model)).meta.context
    if scheduler.context > own:
        raise LaunchFailed(f"context {scheduler.context} was asked for, the model has {own}; give at most that")
    return scheduler if scheduler.context else msgspec.structs.replace(scheduler, context=own)


def _stop_at_exit(launcher: Launcher) -> Callable[[], None]:
    reference = weakref.ref(launcher)

    def stop() -> None:
        alive = reference()
        if alive is not None:
            alive.stop()

    return atexit.register(stop)
