"""Say what this machine has and lacks to run ramet, and what to change for each lack.

The exit status is 0 if ramet can run here.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ramet.cli.machine import Machine, cuda_devices, look

_GIB = 1 << 30
_NEEDED_MEMORY = 2 * _GIB
_PYTHON = (3, 10)


@dataclass(frozen=True)
class Finding:
    """state: ok; note: it runs, but slower or with less; lack: ramet cannot run. ``advice``: what to change."""

    name: str
    state: Literal["ok", "note", "lack"]
    detail: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument("--model", default="default", metavar="MODEL", help="look for this model in the store")


def run(arguments: argparse.Namespace) -> int:
    findings = list(examine(arguments.model))
    can_run = all(finding.state != "lack" for finding in findings)
    if arguments.json:
        print(json.dumps({"can_run": can_run, "findings": [dataclasses.asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            print(f"{finding.state:>4}  {finding.name:<12} {finding.detail}")
            if finding.advice:
                print(f"{'':>19}-> {finding.advice}")
        print("\nramet can run here." if can_run else "\nramet cannot run here yet: mend what is marked 'lack'.")
    return 0 if can_run else 1


def examine(model: str = "default") -> Iterator[Finding]:
    machine = look()
    yield _python()
    yield Finding("cpu", "ok", f"{machine.cpu} ({machine.architecture}; {' '.join(machine.flags) or 'baseline'})")
    yield _cores(machine)
    yield _memory(machine)
    yield from _kernels(machine)
    yield from _gpu()
    yield _sockets()
    yield _model(model)
    yield _port(8000)


def _python() -> Finding:
    detail = f"{platform.python_version()} ({sys.executable}), {platform.system()} {platform.release()}"
    if sys.version_info < _PYTHON:
        return Finding("python", "lack", detail, "use Python 3.10 or newer")
    if sys.platform == "win32":
        return Finding("python", "lack", detail, "use Linux, macOS or WSL: ramet's processes speak over Unix sockets")
    return Finding("python", "ok", detail)


def _cores(machine: Machine) -> Finding:
    if machine.cores < 2:
        return Finding("cores", "note", "1", "with two or more, the kernels need not share a core with the scheduler")
    return Finding("cores", "ok", f"{machine.cores} (the worker uses them all; --threads N takes fewer)")


def _memory(machine: Machine) -> Finding:
    if machine.memory is None:
        return Finding("memory", "note", "unknown", "give --kv-tokens, which is else sized from free memory")
    free = machine.free_memory if machine.free_memory is not None else machine.memory
    detail = f"{machine.memory / _GIB:.1f} GiB, {free / _GIB:.1f} GiB free"
    if free < _NEEDED_MEMORY:
        return Finding("memory", "note", detail, "close other programs, or give a small pool: --kv-tokens 8192")
    return Finding("memory", "ok", detail)


def _kernels(machine: Machine) -> Iterator[Finding]:
    has_torch = importlib.util.find_spec("torch") is not None
    try:
        importlib.import_module("ramet.kernels._cpu")
    except ImportError as error:
        compiler = f"a compiler is there ({machine.compiler})" if machine.compiler else "no C++ compiler was found"
        advice = (
            "pip install --force-reinstall --no-deps ramet"
            if machine.compiler
            else "install a C++ compiler (Debian: apt install g++; macOS: xcode-select --install), then reinstall ramet"
        )
        detail = f"C++ kernels are not built ({error}); {compiler}"
        if has_torch:
            yield Finding("kernels", "note", f"{detail}; the slower reference kernels run instead", advice)
        else:
            yield Finding("kernels", "lack", detail, f"{advice}; or take the slow ones: pip install 'ramet[torch]'")
    else:
        yield Finding("kernels", "ok", f"C++ kernels ({_lane()})")
    yield Finding("torch", "ok", version("torch") if has_torch else "not installed, and not needed on a CPU")


def _lane() -> str:
    try:
        from ramet.kernels.cpu import CpuOps

        return str(getattr(CpuOps(threads=1), "isa", "built"))
    except Exception as error:  # whatever the kernels say is the finding
        return f"they fail to start: {error}"


def _gpu() -> Iterator[Finding]:
    devices = cuda_devices()
    if not devices:
        yield Finding("gpu", "ok", "none found: the CPU is used")
        return
    names = ", ".join(devices)
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        yield Finding("gpu", "note", f"{names}; {' and '.join(missing)} not installed", "pip install 'ramet[gpu]'")
    else:
        yield Finding("gpu", "ok", names)


def _sockets() -> Finding:
    """The processes speak over Unix sockets in a private folder, whose path must stay short (about 100 bytes)."""
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory(prefix="ramet-") as private:
            path = str(Path(private) / "frontend.sock")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.bind(path)
    except (OSError, AttributeError) as error:
        return Finding(
            "sockets", "lack", f"none can be made in {folder} ({error})", "set TMPDIR to a short local folder"
        )
    return Finding("sockets", "ok", f"in {folder}")


def _model(name: str) -> Finding:
    from ramet.runtime import store
    from ramet.runtime.protocol.errors import RametError

    try:
        folder = store.resolve(name, download=False, progress=False)
    except RametError as error:
        said = str(error).splitlines()[0]
        known = "not in the store" in said
        return Finding("model", "note", said, f"ramet pull {name}" if known else "give --model one of these")
    return Finding("model", "ok", f"{folder.meta.name} in {folder.path}")


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return Finding("port", "note", f"{port} is taken", "ramet serve --port N")
    return Finding("port", "ok", f"{port} is free")
