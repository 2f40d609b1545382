"""Which op set a worker runs on."""

from __future__ import annotations

import importlib.util
import logging

from ramet.kernels.ops import OpSet
from ramet.runtime.protocol.config import WorkerConfig

_log = logging.getLogger(__name__)

NO_KERNELS = (
    "The C++ kernels were not built (no compiler was found when ramet was installed)"
    ": running on the reference kernels, which are slow. Install a C++ compiler and reinstall ramet to change that."
)
NO_TORCH = (
    "Neither the C++ kernels (no compiler was found when ramet was installed) nor torch are there"
    ": install a C++ compiler and reinstall ramet, or install ramet[torch] for the reference kernels."
)


def has_cpu_kernels() -> bool:
    return importlib.util.find_spec("ramet.kernels._cpu") is not None


def select(config: WorkerConfig) -> OpSet:
    """The op set that ``config`` asks for; ``auto``: C++ where it was built, else the reference (a warning says so).

    Raises ValueError where what was asked for by name isn't there.
    """
    if config.kernels not in ("auto", "cpu", "reference"):
        raise ValueError(f"kernels {config.kernels!r} has no op set: use auto, cpu or reference")
    if config.kernels in ("auto", "cpu") and has_cpu_kernels():
        from ramet.kernels.cpu import CpuOps

        kv_dtype = "bf16" if config.kv_dtype == "auto" else config.kv_dtype
        return CpuOps(isa=config.isa, kv_dtype=kv_dtype, threads=config.threads)
    if config.kernels == "cpu":
        raise ValueError(NO_KERNELS.split(":")[0] + ": reinstall ramet with a C++ compiler, or use kernels=reference")
    if importlib.util.find_spec("torch") is None:
        raise ValueError(NO_TORCH)
    if config.kernels == "auto":
        _log.warning(NO_KERNELS)
    from ramet.kernels.reference import ReferenceOps

    kv_dtype = "f32" if config.kv_dtype == "auto" else config.kv_dtype
    return ReferenceOps(kv_dtype=kv_dtype, threads=config.threads)
