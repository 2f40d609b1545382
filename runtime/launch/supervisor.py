"""The thread that owns the children: starts them, restarts the dead and the hung, ends them all.

It lives as long as the children should: on Linux the kernel ties a child to the thread that started it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .child import Child, ChildCommand, describe_exit
from .policy import HangWatch, RestartPolicy
from .rundir import RunDir

log = logging.getLogger(__name__)

LOOK_S = 0.01
"""While something is about to happen: children load, or are to be restarted."""
CALM_LOOK_S = 0.25
STOP_S = 2.5
KILL_S = 0.5


@dataclass(frozen=True)
class ChildStatus:
    """``last_exit``: why it was last restarted; empty if it never was."""

    role: str
    pid: int
    ready: bool
    restarts: int
    last_exit: str


@dataclass
class _Seat:
    """The place of one role; children come and go."""

    command: ChildCommand
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    watch: HangWatch = field(default_factory=lambda: HangWatch(4 * CALM_LOOK_S))
    child: Child | None = None
    start_at: float = 0.0
    was_ready: bool = False
    restarts: int = 0
    last_exit: str = ""


class Supervisor:
    """``on_failure`` is called on the thread when a child is given up; the others have been ended then.

    Before all children were ready once, a single death is a failure: what cannot start is not tried again.
    """

    def __init__(
        self,
        commands: Sequence[ChildCommand],
        run_dir: RunDir,
        on_failure: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seats = [_Seat(command) for command in commands]
        self._run_dir = run_dir
        self._on_failure = on_failure
        self._clock = clock
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._wake = threading.Event()
        self.started = False
        """All children were ready once."""
        self.failure = ""
        self._thread = threading.Thread(target=self._run, name="ramet-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_started(self, timeout_s: float) -> bool:
        """True once all were ready, one has failed (see ``failure``), or ``stop`` was called."""
        return self._settled.wait(timeout_s)

    def stop(self) -> None:
        """Ends all children within three seconds. Idempotent; from any thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None and not self.on_own_thread:
            self._thread.join(STOP_S + 2 * KILL_S + 1.0)

    @property
    def on_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def status(self) -> tuple[ChildStatus, ...]:
        return tuple(
            ChildStatus(
                role=seat.command.role,
                pid=seat.child.pid if seat.child is not None else 0,
                ready=seat.child is not None and seat.child.exit_code is None and seat.child.ready,
                restarts=seat.restarts,
                last_exit=seat.last_exit,
            )
            for seat in self._seats
        )

    # ------------------------------------------------------------ on the thread

    def _run(self) -> None:
        try:
            last = self._clock()
            while not self._stopping.is_set() and not self.failure:
                now = self._clock()
                for seat in self._seats:
                    self._look(seat, now, now - last)
                last = now
                if not self.started and all(seat.was_ready for seat in self._seats):
                    self.started = True
                    self._settled.set()
                calm = all(seat.child is not None and seat.was_ready for seat in self._seats)
                self._wake.wait(CALM_LOOK_S if calm else LOOK_S)
                self._wake.clear()
        except Exception as error:  # e.g. no process can be started any more
            log.exception("the supervisor failed")
            self.failure = f"the supervisor failed: {type(error).__name__}: {error}"
        self._end_children()
        self._settled.set()  # whoever waits for the start (in another thread) learns that it was stopped
        if self.failure:
            if self.started:  # else whoever starts it raises it
                log.error("given up: %s", self.failure)
            self._on_failure(self.failure)

    def _look(self, seat: _Seat, now: float, elapsed: float) -> None:
        if seat.child is None:
            if now >= seat.start_at:
                seat.child = Child(seat.command, self._run_dir.path, self._wake.set)
                seat.was_ready = False
            return
        code = seat.child.exit_code
        if code is None:
            seat.was_ready = seat.was_ready or seat.child.ready
            if not seat.watch.hangs(seat.child.pulse, elapsed):
                return
            log.warning("%s makes no progress: it is killed", seat.command.role)
            seat.child.kill()
            why = "made no progress and was killed"
        else:
            why = describe_exit(code)
        self._died(seat, now, why)

    def _died(self, seat: _Seat, now: float, why: str) -> None:
        role = seat.command.role
        seat.child = None
        seat.last_exit = why
        delay = seat.policy.died(now, was_ready=seat.was_ready)
        if delay is None or not self.started:
            lines = self._run_dir.last_lines(role)
            often = f" ({seat.restarts + 1} times)" if seat.restarts else ""
            self.failure = f"the {role} process {why}{often}; the last lines of its log:\n{lines}"
            return
        log.warning("the %s process %s: it is restarted", role, why)
        seat.restarts += 1
        seat.start_at = now + delay
        if not delay:
            self._wake.set()

    def _end_children(self) -> None:
        children = [seat.child for seat in self._seats if seat.child is not None]
        for child in children:
            child.terminate()
        deadline = self._clock() + STOP_S
        for child in children:
            if not child.wait(deadline - self._clock()):
                log.warning("%s does not end: it is killed", child.role)
            child.kill()
        for seat in self._seats:
            seat.child = None
