"""The time between two steps, and what scheduler and frontend cost: ``python benchmarks/step_gap.py``.

Starts ``ramet serve``, lets sixteen streams decode, plain ones and then ones bound by a JSON schema, and looks at two
seconds in their middle: step and gap as the worker reports them (``/metrics`` as JSON, medians), and the processor time
of the processes (Linux: /proc). Then the same processes with nothing to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

ROWS = 16
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 60}},
    "required": ["a"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "list", "schema": SCHEMA}}


def seconds_of(server: int) -> dict[str, float]:
    """Processor time so far, by role."""
    used: dict[str, float] = {}
    todo = [server]
    while todo:
        pid = todo.pop()
        for task in Path(f"/proc/{pid}/task").iterdir():
            todo += [int(child) for child in (task / "children").read_text().split()]
        line = Path(f"/proc/{pid}/cmdline").read_text()
        role = next((name for name in ("scheduler", "worker") if f"runtime.{name}" in line), "other")
        role = "frontend" if pid == server else role
        own = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]  # ticks, its own and the kernel's
        used[role] = used.get(role, 0.0) + sum(map(int, own)) / os.sysconf("SC_CLK_TCK")
    return used


async def shares(server: int, wait_s: float) -> dict[str, float]:
    """Processor time of each role over the time that passes."""
    before, began = seconds_of(server), time.monotonic()
    await asyncio.sleep(wait_s)
    after, passed = seconds_of(server), time.monotonic() - began
    return {role: (seconds - before.get(role, 0.0)) / passed for role, seconds in after.items()}


async def stream(web: httpx.AsyncClient, number: int, fields: dict[str, Any]) -> None:
    body = {
        "model": "default",
        "prompt": f"Item number {number}: tell me about the history of",
        "max_tokens": 400,
        "temperature": 0,
        "stream": True,
        **fields,
    }
    async with web.stream("POST", "/v1/completions", json=body) as reply:
        async for _ in reply.aiter_raw():
            pass


async def scene(web: httpx.AsyncClient, server: int, fields: dict[str, Any]) -> dict[str, float]:
    streams = [asyncio.create_task(stream(web, number, fields)) for number in range(ROWS)]
    await asyncio.sleep(2.0)
    used = await shares(server, 2.0)
    stats = (await web.get("/metrics", headers={"accept": "application/json"})).json()
    still = sum(not task.done() for task in streams)
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    return {
        "rows": still,
        "step_ms": stats["step_seconds"] * 1e3,
        "gap_ms": stats["step_gap"] * 1e3,
        "scheduler and frontend": used["scheduler"] + used["frontend"],
    }


async def measure(url: str, server: int) -> dict[str, dict[str, float]]:
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as web:
        result = {
            "plain": await scene(web, server, {"ignore_eos": True}),
            "constrained": await scene(web, server, {"response_format": FORMAT}),
        }
        await asyncio.sleep(1.0)
        result["idle"] = await shares(server, 10.0)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "ramet", "serve", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        line = ""
        while "ramet serves" not in line:
            line = server.stderr.readline()
            if not line:
                raise SystemExit("the server did not start")
        result = asyncio.run(measure(line.split(" on ")[1].strip().removesuffix("/v1"), server.pid))
    finally:
        server.terminate()
        server.wait(20)
    if arguments.json:
        print(json.dumps(result))
        return
    for name in ("plain", "constrained"):
        found = result[name]
        print(
            f"{name}: {found['rows']} rows, step {found['step_ms']:.2f} ms, gap {found['gap_ms']:.3f} ms, "
            f"scheduler and frontend {found['scheduler and frontend']:.1%} of a core"
        )
    print("idle: " + ", ".join(f"{role} {share:.2%}" for role, share in result["idle"].items()))


if __name__ == "__main__":
    main()
