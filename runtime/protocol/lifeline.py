"""Children end with their parent, also when it is killed with -9."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
POLL_S = 1.0


def end_with_parent(parent_pid: int) -> None:
    """Call once, early, in the child. ``parent_pid`` 0: the process stands on its own and nothing is done.

    On Linux the kernel kills a direct child at once (the thread that started it must live as long as the child
    should); everywhere a thread looks once per second.
    """
    if parent_pid <= 0:
        return
    if sys.platform == "linux" and os.getppid() == parent_pid:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not _alive(parent_pid):
        os._exit(1)
    threading.Thread(target=_watch, args=(parent_pid,), name="lifeline", daemon=True).start()


def _watch(parent_pid: int) -> None:
    while _alive(parent_pid):
        time.sleep(POLL_S)
    os._exit(1)


def _alive(parent_pid: int) -> bool:
    if os.getppid() == parent_pid:
        return True
    try:
        os.kill(parent_pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # Started through another process: alive, unless it is only waiting to be reaped by one that died before.
    return os.getppid() != 1
