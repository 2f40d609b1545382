"""Live and compiled programs on one server: throughput, and the client's CPU.

    python benchmarks/compiled_programs.py --url http://127.0.0.1:8000 --programs 32

A six-call agent pipeline under one 1,200-token system prompt, 16 tokens per call, greedy, warm cache. Prints one line
per way: seconds, programs per second, seconds of the client's CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import ramet as rt

RULES = (
    "You are one member of a team. "
    + "Keep to your task, be brief, use plain words, and never speak of the team. " * 75
)


@rt.function
def pipeline(s: rt.State, task: str) -> None:
    s += rt.system(RULES) + rt.user(f"The task: {task}.")
    s += rt.assistant("Plan: " + call("plan"))
    workers = s.fork(3)
    for index, worker in enumerate(workers):
        worker += rt.user(f"Work on part {index} of: {s['plan']}") + rt.assistant(call("part"))
    workers.join()
    s += rt.user("The parts: " + " ".join(s["part"])) + rt.assistant(call("review"))
    s += rt.user("Improve it.") + rt.assistant(call("final"))


def call(name: str) -> rt.Gen[str]:
    return rt.gen(name, max_tokens=16, temperature=0, ignore_eos=True)


def measure(name: str, count: int, run: Callable[[list[tuple[str]]], list[rt.State]]) -> list[str]:
    items = [(f"number {i}",) for i in range(count)]
    wall, cpu = time.monotonic(), time.process_time()
    states = run(items)
    texts = [state.text() for state in states]
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    print(f"{name:9} {wall:7.2f} s  {count / wall:6.2f} programs/s  {cpu:6.2f} s client CPU ({100 * cpu / wall:.0f} %)")
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--programs", type=int, default=32)
    arguments = parser.parse_args()
    with rt.RuntimeEndpoint(arguments.url) as server:
        compiled = pipeline.compile()
        compiled.run("warm up", backend=server).sync()
        live_texts = measure("live", arguments.programs, lambda items: list(pipeline.run_batch(items, backend=server)))
        server.flush_cache()
        compiled.run("warm up", backend=server).sync()
        compiled_texts = measure(
            "compiled", arguments.programs, lambda items: list(compiled.run_batch(items, backend=server))
        )
        print("equal texts:", live_texts == compiled_texts)


if __name__ == "__main__":
    main()
