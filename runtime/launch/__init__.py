"""Starting, supervising and ending the processes of a runtime."""

from __future__ import annotations

from ramet.runtime.launch.launcher import Launcher, LauncherStatus, LaunchFailed
from ramet.runtime.launch.supervisor import ChildStatus

__all__ = ["ChildStatus", "LaunchFailed", "Launcher", "LauncherStatus"]
