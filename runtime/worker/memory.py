"""How large the KV pool may be."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_SHARE = 0.4
DEFAULT_TOKENS = 65_536


def available_bytes() -> int:
    """Memory that this process may still take: what the system has left, or the control group's limit if lower."""
    found = [_meminfo(), _cgroup_v2(), _cgroup_v1()]
    known = [value for value in found if value is not None]
    return min(known) if known else 1 << 30


def pool_blocks(kv_tokens: int, block_size: int, bytes_per_token: int, available: int) -> int:
    """Blocks of the pool: ``kv_tokens`` rounded up to whole blocks, or, where it is 0, what 40 % of the available
    memory hold, 65,536 tokens at most. Always at least one block."""
    if kv_tokens <= 0:
        kv_tokens = min(int(DEFAULT_SHARE * available) // max(bytes_per_token, 1), DEFAULT_TOKENS)
        return max(kv_tokens // block_size, 1)
    return -(-kv_tokens // block_size)


def _meminfo() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError):
        return None


def _cgroup_v2() -> int | None:
    return _left(Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))


def _cgroup_v1() -> int | None:
    folder = Path("/sys/fs/cgroup/memory")
    return _left(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes")


def _left(limit: Path, used: Path) -> int | None:
    try:
        return max(int(limit.read_text()) - int(used.read_text()), 0)
    except (OSError, ValueError):
        return None
