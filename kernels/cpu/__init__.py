"""The C++ op set. Importing it needs the compiled module ``ramet.kernels._cpu``; see ``ramet.kernels.select``."""

from ramet.kernels.cpu.opset import CpuOps

__all__ = ["CpuOps"]
