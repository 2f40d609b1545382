"""What can be read of this machine without changing it. All sizes in bytes; None where it cannot be known."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_WANTED_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimddp",
    "i8mm",
    "bf16",
)


@dataclass(frozen=True)
class Machine:
    """``flags``: the instruction sets that kernels make use of. ``cores``: those this process may use."""

    system: str
    architecture: str
    cpu: str
    flags: tuple[str, ...]
    cores: int
    memory: int | None
    free_memory: int | None
    compiler: str | None


def look() -> Machine:
    cpu, flags = _cpu()
    total, free = memory()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        cpu=cpu,
        flags=tuple(flag for flag in _WANTED_FLAGS if flag in flags),
        cores=cores(),
        memory=total,
        free_memory=free,
        compiler=next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None),
    )


def cores() -> int:
    """Cores that this process may run on: fewer than the machine has, in containers and under taskset."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        usable = os.cpu_count() or 1
    quota = _cpu_quota()
    return usable if quota is None else max(1, min(usable, quota))


def _cpu_quota() -> int | None:
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else max(1, round(int(limit) / int(period)))
    except (OSError, ValueError):
        return None


def memory() -> tuple[int | None, int | None]:
    """(all of it, what is free to use)."""
    fields: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        total = _sysctl("hw.memsize")
        return (int(total) if total else None), None
    total_bytes, free = fields.get("MemTotal"), fields.get("MemAvailable")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return total_bytes, free
    return min(limit, total_bytes or limit), min(limit - used, free if free is not None else limit)


def _cpu() -> tuple[str, set[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return _sysctl("machdep.cpu.brand_string") or platform.processor() or "unknown", set()
    name, flags = platform.machine(), set[str]()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
            break
    return name, flags


def _sysctl(name: str) -> str:
    if platform.system() != "Darwin":
        return ""
    try:
        return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def cuda_devices() -> list[str]:
    """Names of the NVIDIA GPUs that the driver reports; empty without a driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ["(a CUDA driver, but no nvidia-smi to name the devices)"]
    try:
        found = subprocess.run(
            [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.strip()] if found.returncode == 0 else []
