"""How long ``ramet serve`` takes from its start to the first successful answer, and what its processes spend on it.

    python benchmarks/startup.py                     # seven starts, the model in the store already
    python benchmarks/startup.py --repeat 3 -- --kv-dtype int8

``ready``: seconds from exec to the first 200 of /ready, asked every 5 ms. ``CPU``: user and system seconds of each
process until then, children of children counted with their parents.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
COMMAND = "import sys; from ramet.cli import main; sys.exit(main(sys.argv[1:]))"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def processes(root: int) -> list[int]:
    """``root`` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def role(pid: int, root: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    modules = [word.rpartition(".")[2] for word in words if word.startswith("ramet.")]
    return "serve" if pid == root else modules[0] if modules else words[0].rpartition("/")[2]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICK


def start(options: list[str]) -> dict[str, float]:
    """One start and stop: seconds by name."""
    port = free_port()
    begun = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", "--port", str(port), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                if server.poll() is not None:
                    assert server.stderr is not None
                    sys.exit(f"the server ended: {server.stderr.read().decode()}")
                time.sleep(0.005)
        seconds = {"ready": time.monotonic() - begun}
        for pid in processes(server.pid):
            name = f"CPU {role(pid, server.pid)}"
            seconds[name] = seconds.get(name, 0.0) + cpu_s(pid)
        return seconds
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("options", nargs="*", help="for ramet serve, after --")
    arguments = parser.parse_args()
    start(arguments.options)  # fills the caches of files
    runs = [start(arguments.options) for _ in range(arguments.repeat)]
    names = sorted({name for run in runs for name in run}, key=lambda name: (name != "ready", name))
    medians = {name: statistics.median(run.get(name, 0.0) for run in runs) for name in names}
    for name in names:
        values = [run.get(name, 0.0) for run in runs]
        print(f"{name:<20} {medians[name]:.2f} s  [{min(values):.2f}-{max(values):.2f}]")
    if arguments.json:
        print(json.dumps(medians))


if __name__ == "__main__":
    main()
