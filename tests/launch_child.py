"""A child for the launcher's tests: ``python launch_child.py ROLE BEHAVIOUR '<RuntimeConfig as JSON>'``."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from ramet.runtime.protocol.config import RuntimeConfig
from ramet.runtime.protocol.lifeline import end_with_parent
from ramet.runtime.protocol.pulse import Pulse, pulse_path

role, behaviour, text = sys.argv[1:]
config = RuntimeConfig.from_json(text)
end_with_parent(config.parent_pid)
marker = Path(config.run_dir) / f"{role}.started"
starts = int(marker.read_text()) + 1 if marker.exists() else 1
marker.write_text(str(starts))
pulse = Pulse(pulse_path(config.run_dir, role))
print(f"{role} starts for the {starts}. time", flush=True)
if behaviour == "fails":
    sys.exit("scripted failure: no such model")
if behaviour == "fails-later" and starts > 1:
    sys.exit("scripted failure: the disk is gone")
if behaviour == "slow":
    time.sleep(60)
if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
pulse.idle()
if behaviour == "hangs" and starts == 1:
    time.sleep(0.3)
    pulse.busy(0.001)
time.sleep(600)
