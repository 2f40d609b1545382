"""A worker process on the scripted device: ``python worker_child.py '<RuntimeConfig as JSON>' [seconds per step]``."""

from __future__ import annotations

import logging
import sys
import time

from ramet.runtime.protocol.config import RuntimeConfig
from ramet.runtime.worker.core import WorkerCore
from ramet.runtime.worker.process import main
from worker_fakes import FakeRunner, compile_script

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    step_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0

    class SlowRunner(FakeRunner):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            time.sleep(step_s)
            return super().forward(batch)

    main(RuntimeConfig.from_json(sys.argv[1]), lambda config: WorkerCore(SlowRunner(), compile_script))
