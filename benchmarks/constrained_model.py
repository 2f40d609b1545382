"""Constraints and the real model together, through a scheduler and a worker of their own.

generations   60 public schemas x 5 seeds: which outputs end by themselves, and is each one valid?
forcing       the same outputs with forced text appended and with forced text sampled; steps and time at batch 1
victim        a stream's gaps while 50 hostile schemas are sent to the same server

    python benchmarks/constrained_model.py generations --temperature 0.7
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from constraint_cases import hostile
from ramet.runtime import store
from ramet.runtime.constrain import compile
from ramet.runtime.frontend.chat import ChatTemplate
from ramet.runtime.frontend.client import Client, GenerateRequest
from ramet.runtime.frontend.generation import ChoiceResult
from ramet.runtime.launch import Launcher
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig, WorkerConfig
from ramet.runtime.protocol.errors import ConstraintError, GenerationFailed
from ramet.runtime.protocol.messages import ConstraintSpec
from ramet.runtime.tokenizer import Tokenizer

CASES = Path(__file__).parents[2] / "shared" / "cases" / "schemas.jsonl"
SHORT = 300
"""Tokens of a schema's shortest valid instance."""


@dataclass(frozen=True)
class Task:
    source: str
    schema: Any
    prompt: list[int]
    close_after: int = 0

    @property
    def spec(self) -> ConstraintSpec:
        options = json.dumps({"close_after": self.close_after})
        return ConstraintSpec("json_schema", json.dumps(self.schema), options=options)


class Model:
    def __init__(self) -> None:
        self.folder = store.resolve("default", progress=False)
        self.tokenizer = Tokenizer.load(self.folder)
        self.chat = ChatTemplate(self.folder.meta)

    def launcher(self, *, jump_forward: bool = True) -> Launcher:
        worker = WorkerConfig(kv_tokens=65_536, jump_forward=jump_forward)
        return Launcher(
            RuntimeConfig(model=str(self.folder.path), run_dir="", scheduler=SchedulerConfig(), worker=worker)
        )

    def task(self, case: dict[str, Any]) -> Task:
        schema = case["schema"]
        about = schema.get("title") or schema.get("description") or "" if isinstance(schema, dict) else ""
        content = f"{about}\nAnswer with one JSON value.".strip()
        text = self.chat.render([{"role": "user", "content": content}])
        return Task(case["source"], schema, self.tokenizer.encode(text, special=True))

    def tasks(self, cases: list[dict[str, Any]]) -> Iterator[Task]:
        """Of the schemas with a short valid instance every third."""
        short = [case for case in cases if self._shortest(case) < SHORT]
        return map(self.task, short[::3])

    def _shortest(self, case: dict[str, Any]) -> float:
        texts = [
            json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False)
            for test in case["tests"]
            if test["valid"]
        ]
        return min((len(self.tokenizer.encode(text)) for text in texts), default=float("inf"))


async def generate(client: Client, task: Task, **sampling: Any) -> ChoiceResult:
    request = GenerateRequest(ids=task.prompt, constraint=task.spec, **sampling)
    return (await client.generate(request).result())[0]


# ---------------------------------------------------------------- generations


def verdict(model: Model, task: Task, result: ChoiceResult) -> str:
    """What became of one output; anything but ``valid`` and ``prefix`` is a fault."""
    import jsonschema

    if result.finish_reason == "length":
        matcher = compile(task.spec, model.tokenizer).matcher()
        return "prefix" if matcher.advance(result.ids) else "NOT A PREFIX"
    if result.finish_reason != "end":
        return result.finish_reason.upper()
    kind = jsonschema.validators.validator_for(task.schema, jsonschema.Draft202012Validator)
    validator = kind(task.schema, format_checker=jsonschema.FormatChecker())
    try:
        return "valid" if validator.is_valid(json.loads(result.text)) else "INVALID"
    except ValueError:
        return "NO JSON"


async def generations(model: Model, endpoint: str, tasks: list[Task], temperature: float, seeds: int) -> None:
    client = Client(endpoint, model.tokenizer)
    await client.start()
    room = asyncio.Semaphore(32)
    counts: Counter[str] = Counter()
    unended: Counter[str] = Counter()
    tokens = 0

    async def one(task: Task, seed: int) -> None:
        nonlocal tokens
        async with room:
            result = await generate(client, task, temperature=temperature, seed=seed, max_tokens=1024)
        found = verdict(model, task, result)
        counts[found] += 1
        tokens += len(result.ids)
        if found != "valid":
            unended[task.source] += 1
        if found not in ("valid", "prefix"):
            print(f"  {task.source} seed {seed}: {found}: {result.text[-300:]!r}")

    start = time.monotonic()
    await asyncio.gather(*(one(task, seed) for task in tasks for seed in range(seeds)))
    await client.close()
    total = sum(counts.values())
    share = counts["valid"] / total
    print(f"temperature {temperature}: {total} outputs of {len(tasks)} schemas, {tokens} tokens: {dict(counts)}")
    print(f"  {share:.1%} end by themselves; {time.monotonic() - start:.0f} s; most without an end: ", end="")
    print(", ".join(f"{name} {count}" for name, count in unended.most_common(8)))


# ---------------------------------------------------------------- forcing


@dataclass(frozen=True)
class Run:
    ids: list[int]
    forced: int
    steps: float
    seconds: float


async def runs(model: Model, endpoint: str, tasks: list[Task], temperature: float, most: int) -> list[Run]:
    """One request after the other: batch 1."""
    client = Client(endpoint, model.tokenizer)
    await client.start()
    found = []
    for seed, task in enumerate(tasks):
        for warm in (True, False):  # the first run pays for the compile and the prompt
            start = time.perf_counter()
            result = await generate(
                client, task, temperature=temperature, seed=seed, max_tokens=1 if warm else most, top_p=0.95
            )
            elapsed = time.perf_counter() - start
        forced = result.usage.forced
        found.append(Run(list(result.ids), forced, len(result.ids) - forced, elapsed))
    await client.close()
    return found


def compare(on: list[Run], off: list[Run], name: str) -> None:
    same = sum(left.ids == right.ids for left, right in zip(on, off, strict=True))
    tokens = sum(len(run.ids) for run in off)
    share = sum(run.forced for run in on) / tokens
    steps = 1 - sum(run.steps for run in on) / sum(run.steps for run in off)
    wall = 1 - sum(run.seconds for run in on) / sum(run.seconds for run in off)
    print(
        f"{name}: {same} of {len(on)} outputs the same, {tokens} tokens, {share:.1%} forced; "
        f"sampled ids fall by {steps:.1%}, wall time by {wall:.1%} ({wall / share:.2f} x the share)"
    )


# ---------------------------------------------------------------- victim


async def victim(model: Model, endpoint: str, seconds: float = 20.0) -> None:
    """Gaps between the chunks of a stream without a constraint: alone, then while hostile schemas come in."""
    client = Client(endpoint, model.tokenizer)
    await client.start()
    prompt = model.tokenizer.encode(model.chat.render([{"role": "user", "content": "Count."}]), special=True)
    ordinary = ConstraintSpec("json_schema", '{"type":"object","properties":{"a":{"type":"integer"}}}')
    await client.generate(GenerateRequest(ids=prompt, max_tokens=4, constraint=ordinary)).result()

    async def gaps(stop: asyncio.Event) -> list[float]:
        found = []
        while not stop.is_set():
            stream = client.generate(GenerateRequest(ids=prompt, max_tokens=400, ignore_eos=True, temperature=0.0))
            last = None
            async for _ in stream:
                now = time.perf_counter()
                if last is not None:
                    found.append(1000 * (now - last))
                last = now
                if stop.is_set():
                    stream.cancel()
                    break
        return found

    async def attack() -> Counter[str]:
        counts: Counter[str] = Counter()
        for _, spec in itertools.islice(hostile(), 50):
            try:
                await client.generate(GenerateRequest(ids=prompt, max_tokens=2, constraint=spec)).result()
                counts["compiles"] += 1
            except ConstraintError as error:
                counts[error.kind] += 1
            except GenerationFailed:
                counts["fails while it is written"] += 1
        return counts

    async def measured(work: Any) -> tuple[list[float], Any]:
        stop = asyncio.Event()
        watching = asyncio.create_task(gaps(stop))
        result = await work
        stop.set()
        return await watching, result

    quiet, _ = await measured(asyncio.sleep(seconds))
    loud, counts = await measured(attack())
    await client.close()
    print(f"hostile: {dict(counts)}")
    for name, times in (("alone", quiet), ("attacked", loud)):
        ordered = sorted(times)
        spread = [ordered[int(len(ordered) * share)] for share in (0.5, 0.95, 0.99)]
        print(f"  gaps {name:<9}", " ".join(f"{value:.1f}" for value in spread), f"max {ordered[-1]:.1f} ms")
    print(f"  slowest gap over the median alone: {max(loud) - statistics.median(quiet):.1f} ms")


# ---------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("generations", "forcing", "victim"))
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--schemas", default="0:60", help="slice of the schemas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--close-after", type=int, default=0, help="the constraint's option (generations)")
    parser.add_argument("--tokens", type=int, default=64, help="bound of an output (forcing)")
    given = parser.parse_args()
    model = Model()
    cases = [json.loads(line) for line in given.cases.read_text(encoding="utf-8").splitlines()]
    low, high = (int(part) for part in given.schemas.split(":"))
    if given.part == "generations":
        chosen = itertools.islice(model.tasks(cases), low, high)
        tasks = [replace(task, close_after=given.close_after) for task in chosen]
        with model.launcher() as launcher:
            asyncio.run(generations(model, launcher.config.frontend_endpoint, tasks, given.temperature, given.seeds))
    elif given.part == "forcing":
        tasks = [model.task(case) for case in cases[low:high]]
        found = []
        for jump in (True, False):
            with model.launcher(jump_forward=jump) as launcher:
                endpoint = launcher.config.frontend_endpoint
                found.append(asyncio.run(runs(model, endpoint, tasks, given.temperature, given.tokens)))
        compare(*found, f"temperature {given.temperature}")
    else:
        with model.launcher() as launcher:
            asyncio.run(victim(model, launcher.config.frontend_endpoint))


if __name__ == "__main__":
    main()
