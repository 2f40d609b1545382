"""What a server costs beside time: CPU seconds and memory of its process tree, as far as /proc shows them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """``cpu_s``: of the tree; ``peak_pss``: bytes, pages that processes share counted once. ``other_cpu_s``: of
    everything else on this machine but the client; ``steal_s``: taken by the host. None where it cannot be seen."""

    cpu_s: float | None = None
    peak_pss: int | None = None
    other_cpu_s: float | None = None
    steal_s: float | None = None


class Watch:
    """``with Watch(pid) as watch: ...; watch.usage``. Without a pid only the machine as a whole is watched."""

    usage = Usage()

    def __init__(self, pid: int | None, every_s: float = 1.0) -> None:
        self._pid = pid
        self._every_s = every_s
        self._ended = threading.Event()
        self._peak: int | None = None
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._cpu, self._machine, self._own = self._tree_cpu(), machine_cpu(), sum(os.times()[:2])
        if self._pid is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        cpu, machine, own = self._tree_cpu(), machine_cpu(), sum(os.times()[:2]) - self._own
        self._ended.set()
        if self._pid is not None:
            self._thread.join()
            self._look()
        spent = cpu - self._cpu if cpu is not None and self._cpu is not None else None
        busy = machine[0] - self._machine[0] if machine and self._machine else None
        self.usage = Usage(
            cpu_s=spent,
            peak_pss=self._peak,
            other_cpu_s=max(0.0, busy - spent - own) if busy is not None and spent is not None else None,
            steal_s=machine[1] - self._machine[1] if machine and self._machine else None,
        )

    def _tree_cpu(self) -> float | None:
        return tree_cpu(self._pid) if self._pid is not None else None

    def _follow(self) -> None:
        while not self._ended.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        assert self._pid is not None
        now = tree_pss(self._pid)
        if now is not None:
            self._peak = max(self._peak or 0, now)


def tree(pid: int) -> list[int]:
    """``pid`` and all below it that are alive."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in _PROC.glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields is not None:
            children[int(fields[1])].append(int(entry.name))
    found, open_ = [], [pid]
    while open_:
        found.append(open_.pop())
        open_ += children[found[-1]]
    return found


def tree_cpu(pid: int) -> float | None:
    """Seconds of user and system time of the tree, with those of children that have ended."""
    ticks = [sum(map(int, fields[11:15])) for member in tree(pid) if (fields := _stat(member)) is not None]
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None


def tree_pss(pid: int) -> int | None:
    """Bytes; None if no process of the tree lets us read it."""
    sizes = []
    for member in tree(pid):
        try:
            text = (_PROC / str(member) / "smaps_rollup").read_text()
        except OSError:
            continue
        sizes += [int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")]
    return sum(sizes) if sizes else None


def machine_cpu() -> tuple[float, float] | None:
    """(busy, stolen) seconds since the machine started, over all cores."""
    try:
        ticks = [int(word) for word in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _, _, irq, softirq, steal = ticks
    second = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / second, steal / second


def listener(port: int) -> int | None:
    """The process that listens on ``port`` of this machine, if it is ours to see; of several, the oldest parent."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    if not sockets:
        return None
    owners = [int(entry.name) for entry in _PROC.glob("[0-9]*") if _holds(entry, sockets)]
    return next((pid for pid in owners if set(owners) <= set(tree(pid))), min(owners, default=None))


def _holds(entry: Path, sockets: set[str]) -> bool:
    try:
        links = list((entry / "fd").iterdir())
    except OSError:  # gone, or another user's
        return False
    for link in links:
        with contextlib.suppress(OSError):
            if os.readlink(link) in sockets:
                return True
    return False


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat behind the name, which may hold spaces and brackets: [state, parent, ...]."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
