"""The worker process: plans come in from the scheduler, are run in order, and their results go back."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ramet.runtime.protocol.config import RuntimeConfig
from ramet.runtime.protocol.lifeline import end_with_parent
from ramet.runtime.protocol.messages import Constraint, Drop, RowStart, Shutdown, StepPlan, WorkerError
from ramet.runtime.protocol.pulse import Pulse, pulse_path

from .constraints import Compile
from .core import WorkerCore
from .link import Identity, NewEpoch, SchedulerLink
from .runner import Runner

log = logging.getLogger(__name__)

IDLE_S = 5.0
SMOOTHING = 0.2
UNMEASURED_S = 0.05
"""Seconds per id before the first step: far too many, so that no slow machine's first step is taken for a hang."""


class WorkerProcess:
    """Runs until Shutdown, SIGTERM, or its parent's death. Everything happens on the calling thread."""

    def __init__(self, core: WorkerCore, link: SchedulerLink, pulse: Pulse) -> None:
        self._core = core
        self._link = link
        self._pulse = pulse
        self._stopping = False
        self._seconds_per_id = UNMEASURED_S
        self._measured = False

    def stop(self) -> None:
        """End after the step that is under way. Safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """The pulse says that loading is over when the first scheduler has answered."""
        while not self._stopping:
            for message in self._link.receive(IDLE_S):
                self._handle(message)
                if self._stopping:
                    break

    def _handle(self, message: Any) -> None:
        if isinstance(message, StepPlan):
            self._step(message)
        elif isinstance(message, RowStart):
            self._core.start(message)
        elif isinstance(message, Drop):
            self._core.drop(message.row)
        elif isinstance(message, Constraint):
            self._core.constraint(message.key, message.spec)
        elif isinstance(message, NewEpoch):
            log.info("scheduler of epoch %d", message.epoch)
            self._core.clear()
            self._pulse.idle()
            self._core.warm()
        elif isinstance(message, Shutdown):
            self.stop()

    def _step(self, plan: StepPlan) -> None:
        ids = sum(row.ceiling for row in plan.rows)
        self._pulse.busy(self._seconds_per_id * ids)
        self._link.busy = True
        try:
            result = self._core.step(plan)
        except Exception as error:  # the step is lost, the worker and its model are not
            log.exception("step %d failed", plan.step)
            message = f"{type(error).__name__}: {error}"
            self._link.send([WorkerError(plan.step, tuple(row.row for row in plan.rows), message)])
        else:
            self._link.send([result, *self._core.take_failures()])
            self._measure(result.seconds, ids)
        self._link.busy = False
        self._link.steps += 1
        self._pulse.idle()

    def _measure(self, seconds: float, ids: int) -> None:
        """For the prediction of the next step's length, which tells a long step from a hang."""
        if ids:
            share = SMOOTHING if self._measured else 1.0
            self._seconds_per_id += share * (seconds / ids - self._seconds_per_id)
            self._measured = True


def build_core(config: RuntimeConfig) -> WorkerCore:
    """The core on the runner that the configuration names. Imports are late: an oracle needs no model's libraries."""
    runner: Runner
    compile_spec: Compile | None
    if config.worker.kernels == "oracle":
        from .oracle import build_oracle

        runner, compile_spec = build_oracle(config)
    else:
        from .model_runner import build_model

        runner, compile_spec = build_model(config)
    compiler = ThreadPoolExecutor(1, thread_name_prefix="compile", initializer=_give_way)
    return WorkerCore(runner, compile_spec, jump_forward=config.worker.jump_forward, compiler=compiler)


def _give_way() -> None:
    """The thread that compiles constraints takes what cores the steps leave (Linux: priorities are per thread)."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def main(config: RuntimeConfig, build: Callable[[RuntimeConfig], WorkerCore] = build_core) -> None:
    """The whole life of a worker. ``build`` makes its core, after the pulse has begun and before Hello is said."""
    end_with_parent(config.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its children in order
    pulse = Pulse(pulse_path(config.run_dir, "worker"))
    core = build(config)
    runner = core.runner
    identity = Identity.new(runner.fingerprint, runner.blocks, runner.block_size)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    link = SchedulerLink(config.worker_endpoint, identity, wake_read)
    process = WorkerProcess(core, link, pulse)
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    signal.set_wakeup_fd(wake_write)
    log.info("ready: %s, %d blocks of %d", runner.fingerprint, runner.blocks, runner.block_size)
    try:
        process.run()
    finally:
        link.close()
        core.close()
