"""One set of programs on one server, sent four ways: throughput, and the client's CPU.

    ramet serve --max-rows 64 --kv-tokens 131072 &
    python benchmarks/compiled_programs.py --url http://127.0.0.1:8000 --program pipeline --rounds 3

compiled   run_batch, one request for many programs, which the server runs next to its scheduler
live       run_batch with compile=False: the bodies run here, a request per call, token ids go out
client     the same requests from coroutines written by hand with aiohttp: what Python costs without a DSL
resent     as SGLang's frontend does it: the whole text so far goes out at every call and is encoded again

``pipeline``: six calls of an agent pipeline under one 1,200-token system prompt. ``tree``: a root of 800 tokens, 4
branches of 150, 4 leaves of 50 each. 16 greedy tokens a call, warm cache. The ways alternate; medians are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from ramet.frontend_lang.backend import Piece

import ramet as rt

WORDS = ("river", "stone", "cloud", "paper", "lamp", "garden", "window", "bread", "letter", "winter", "road", "hand")
PARAMETERS = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}
AT_ONCE = 64


def text_of(tokens: int, seed: int) -> str:
    """About one token a word."""
    return " ".join(WORDS[(seed * 31 + i * i + i // 7) % len(WORDS)] for i in range(tokens)) + "."


RULES = text_of(1200, 0)
ROOT, BRANCHES, LEAVES = (
    text_of(800, 1),
    [text_of(150, 2 + i) for i in range(4)],
    [text_of(50, 9 + i) for i in range(4)],
)


def call(name: str) -> rt.Gen[str]:
    return rt.gen(name, max_tokens=16, temperature=0, ignore_eos=True)


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


@rt.function
def tree(s: rt.State, task: str) -> None:
    s += ROOT
    branches = s.fork(4)
    branches += BRANCHES
    for branch in branches:
        leaves = branch.fork(4)
        leaves += [f" {leaf} {task}:" for leaf in LEAVES]
        leaves += call("leaf")
        leaves.join()
    branches.join()


Post = Callable[[list[Any]], Awaitable[Any]]
"""Sends a prompt (a list of texts, special texts and ids) and gives back what was generated."""


async def pipeline_by_hand(post: Post, roles: Roles, task: str) -> None:
    begin, end = roles.begin, roles.end
    head = [begin("system", True), RULES, end("system"), begin("user"), f"The task: {task}.", end("user")]
    head += [begin("assistant"), "Plan: "]
    plan = await post(head)
    head += [plan, end("assistant")]

    async def part(index: int) -> Any:
        asked = [begin("user"), f"Work on part {index} of: ", roles.text(plan), end("user"), begin("assistant")]
        return await post([*head, *asked])

    parts = await asyncio.gather(*(part(index) for index in range(3)))
    head += [begin("user"), "The parts: " + " ".join(map(roles.text, parts)), end("user"), begin("assistant")]
    head += [await post(head), end("assistant"), begin("user"), "Improve it.", end("user"), begin("assistant")]
    await post(head)


async def tree_by_hand(post: Post, roles: Roles, task: str) -> None:
    prompts = [[ROOT + branch + f" {leaf} {task}:"] for branch in BRANCHES for leaf in LEAVES]
    await asyncio.gather(*(post(prompt) for prompt in prompts))


class Roles:
    """The text around messages, as the endpoint's chat template writes it."""

    def __init__(self, endpoint: rt.RuntimeEndpoint) -> None:
        self.backend = endpoint.backend

    def begin(self, role: str, first: bool = False) -> Piece:
        (piece,) = self.backend.role_begin(role, first)
        return piece

    def end(self, role: str) -> Piece:
        (piece,) = self.backend.role_end(role)
        return piece

    def text(self, generated: Any) -> str:
        return generated if isinstance(generated, str) else self.backend.decode(generated).decode("utf-8", "replace")


async def by_hand(
    url: str, roles: Roles, body: Callable[..., Awaitable[None]], items: list[tuple[str]], ids: bool
) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def with_ids(session: aiohttp.ClientSession, prompt: list[Any]) -> list[int]:
        known: list[int] = []
        pieces: list[Piece] = []
        for part in prompt:
            if isinstance(part, list):
                known += [*await roles.backend.encode(pieces, start=not known), *part]
                pieces = []
            else:
                pieces.append(part if isinstance(part, Piece) else Piece(part))
        known += await roles.backend.encode(pieces, start=not known)
        async with session.post("/generate", json={"input_ids": known, "sampling_params": PARAMETERS}) as reply:
            return list((await reply.json())["output_ids"])

    async def with_text(session: aiohttp.ClientSession, prompt: list[Any]) -> str:
        text = "".join(part.text if isinstance(part, Piece) else part for part in prompt)
        async with session.post("/generate", json={"text": text, "sampling_params": PARAMETERS}) as reply:
            return str((await reply.json())["text"])

    async def one(session: aiohttp.ClientSession, task: str) -> None:
        async with gate:
            await body(lambda prompt: (with_ids if ids else with_text)(session, prompt), roles, task)

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(one(session, *item) for item in items))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--program", choices=("pipeline", "tree"), default="pipeline")
    parser.add_argument("--programs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="compiled,live,client,resent")
    arguments = parser.parse_args()
    program, by = {"pipeline": (pipeline, pipeline_by_hand), "tree": (tree, tree_by_hand)}[arguments.program]
    with rt.RuntimeEndpoint(arguments.url) as server:
        roles = Roles(server)

        def hand(items: list[tuple[str]], ids: bool) -> None:
            asyncio.run(by_hand(arguments.url, roles, by, items, ids))

        def batch(items: list[tuple[str]], compile: bool) -> None:
            states = list(program.run_batch(items, backend=server, num_threads=AT_ONCE, compile=compile))
            assert all(state.error() is None for state in states)

        ways: dict[str, Callable[[list[tuple[str]]], None]] = {
            "compiled": lambda items: batch(items, True),
            "live": lambda items: batch(items, False),
            "client": lambda items: hand(items, True),
            "resent": lambda items: hand(items, False),
        }
        chosen = arguments.ways.split(",")
        walls: dict[str, list[float]] = {way: [] for way in chosen}
        cpus: dict[str, list[float]] = {way: [] for way in chosen}
        for round in range(arguments.rounds):
            for way in chosen:
                server.flush_cache()
                batch([(f"warm up {way}",)], True)
                items = [(f"number {round} {i} {way}",) for i in range(arguments.programs)]
                wall, cpu = time.monotonic(), time.process_time()
                ways[way](items)
                walls[way].append(time.monotonic() - wall)
                cpus[way].append(time.process_time() - cpu)
        for way in chosen:
            wall, cpu = statistics.median(walls[way]), statistics.median(cpus[way])
            print(
                f"{way:9} {wall:6.2f} s  {arguments.programs / wall:6.2f} programs/s  client CPU {cpu:5.2f} s = "
                f"{100 * cpu / wall:4.1f} % of wall  (all: {' '.join(f'{value:.2f}' for value in walls[way])})",
                flush=True,
            )


if __name__ == "__main__":
    main()
