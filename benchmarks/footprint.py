"""Memory of all processes of ``ramet serve`` once its KV pool is touched from end to end.

    python benchmarks/footprint.py --kv-dtype bf16
    python benchmarks/footprint.py --kv-dtype int8 --kv-tokens 40000

Distinct prompts fill the pool; then the proportional set sizes (pages that processes share are counted once) of the
server and all its children are read from /proc and printed, with what they consist of.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from startup import COMMAND, free_port, processes, role

PROMPT = 2000
PARTS = ("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem")


def post(url: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        answer: dict[str, object] = json.load(response)
    return answer


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
    return text


def fill(base: str, tokens: int) -> None:
    """Prompts of random ids, each with one new token, until as many are cached as the pool has."""
    rng = random.Random(1)
    for _ in range(-(-tokens // PROMPT)):
        ids = [rng.randrange(100, 49_000) for _ in range(PROMPT)]
        post(f"{base}/v1/completions", {"model": "default", "prompt": ids, "max_tokens": 1, "temperature": 0})


def sizes(pid: int) -> dict[str, float]:
    """MB (of 10^6 bytes) by part."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in PARTS:
            found[name] = int(rest.split()[0]) * 1024 / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-tokens", type=int, default=40_000)
    parser.add_argument("--kv-dtype", default="bf16")
    given = parser.parse_args()
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    options = ["--port", str(port), "--kv-tokens", str(given.kv_tokens), "--kv-dtype", given.kv_dtype]
    server = subprocess.Popen([sys.executable, "-c", COMMAND, "serve", *options], stderr=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            try:
                get(f"{base}/ready")
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        time.sleep(3)  # what comes up after the server is ready
        before = sum(sizes(pid)["Pss"] for pid in processes(server.pid))
        fill(base, given.kv_tokens)
        blocks = [line for line in get(f"{base}/metrics").splitlines() if line.startswith("ramet_blocks")]
        print("\n".join(blocks))
        print(f"{'MB':<16}" + "".join(f"{part:>10}" for part in PARTS))
        total = dict.fromkeys(PARTS, 0.0)
        for pid in processes(server.pid):
            found = sizes(pid)
            print(f"{role(pid, server.pid):<16}" + "".join(f"{found[part]:10.0f}" for part in PARTS))
            for part in PARTS:
                total[part] += found[part]
        print(f"{'all':<16}" + "".join(f"{total[part]:10.0f}" for part in PARTS))
        print(f"before the pool was touched: {before:.0f} MB")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
