"""The programs of ``tests/programs`` at full size on the real model: the table of ``docs/dsl.md``.

    python benchmarks/program_ways.py --save ways.json            # all, or some: --only judge,debate
    python benchmarks/program_ways.py --table ways.json           # as Markdown

For each: whether it compiles (or the line that is in the way); whether ids are equal live and compiled, here and at a
server; the share of prompt tokens that came from the cache, with all runs at once on an empty cache, beside the
structural optimum (an unbounded cache that serves the same calls in their order, token by token); and how much quicker
one run after the other is than without a cache, beside what the saved tokens predict:

    predicted = (computed without a cache + r G) / (computed at the optimum + r G)

G generated tokens; r = cost of a generated token / cost of a prompt token, measured at the beginning.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import program_ways as ways
from catalog import CASES, Case
from dsl_server import served
from ramet.frontend_lang.backend import Branch, Delta, GenCall, Outcome, Scores
from ramet.frontend_lang.token_branch import TokenBranch
from ramet.runtime.protocol.config import Switches
from ramet.runtime.protocol.messages import Usage

import ramet as rt
from ramet.engine_backend import EngineBackend

Ids = tuple[int, ...]


class Trie:
    """Token sequences, by their prefixes."""

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}

    def match(self, ids: Sequence[int]) -> int:
        node, count = self._root, 0
        for token in ids:
            if token not in node:
                break
            node, count = node[token], count + 1
        return count

    def add(self, ids: Sequence[int]) -> None:
        node = self._root
        for token in ids:
            node = node.setdefault(token, {})


@dataclass
class Note:
    """One call: the ids of its prompt, what followed it (of a score: what was scored), what it used."""

    prompt: Ids
    after: list[Ids] = field(default_factory=list)
    is_score: bool = False
    usage: Usage = field(default_factory=Usage)


class NotedBranch(TokenBranch):
    """Writes down the ids of every call, and what it used."""

    def __init__(self, backend: EngineBackend, notes: list[Note], path: Ids = ()) -> None:
        super().__init__(backend, path)
        self.notes = notes

    def _child(self, path: Ids) -> NotedBranch:
        assert isinstance(self._backend, EngineBackend)
        return NotedBranch(self._backend, self.notes, path)

    async def generate(self, call: GenCall, keep: bool, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        await self._encode()
        note = Note(tuple(self.ids))
        self.notes.append(note)
        outcomes = await super().generate(call, keep, on_delta)
        note.after = [outcome.ids for outcome in outcomes]
        note.usage = outcomes[0].usage
        return outcomes

    async def score(self, choices: Sequence[str], unconditional: bool, call: GenCall) -> Scores:
        before = tuple(self.ids)
        scores = await super().score(choices, unconditional, call)
        tails = [len(tokens) for tokens in scores.tokens]
        cut = len(scores.plan[0]) - tails[0]
        prompt = (*before, *scores.plan[0][:cut])
        self.notes.append(Note(prompt, [plan[cut:] for plan in scores.plan], True, scores.usage))
        return scores


class NotedBackend(EngineBackend):
    def __init__(self, engine: rt.Engine) -> None:
        inner = engine.backend
        super().__init__(inner.loop, inner.client, inner.tokenizer, inner.meta)
        self.notes: list[Note] = []

    def open(self, path: Ids = ()) -> Branch:
        return NotedBranch(self, self.notes, path)


def optimum(notes: list[Note]) -> tuple[int, int]:
    """(prompt tokens, those that an unbounded cache has)."""
    trie, prompt, found = Trie(), 0, 0
    for note in notes:
        prompt += len(note.prompt) + (sum(map(len, note.after)) if note.is_score else 0)
        found += min(trie.match(note.prompt), len(note.prompt) - 1)
        for more in note.after:
            trie.add((*note.prompt, *more[:-1]))
    return prompt, found


def one_by_one(case: Case, backend: EngineBackend, engine: rt.Engine) -> tuple[float, dict[str, int]]:
    """(seconds, tokens by kind) of all items, each after the last, on an empty cache."""
    engine.flush_cache()
    before: Any = engine.stats()["tokens"]
    begin = time.monotonic()
    for item in case.items(True):
        state = case.program.run(*item, backend=backend, **ways.OPTIONS)
        assert state.error() is None
    seconds = time.monotonic() - begin
    after: Any = engine.stats()["tokens"]
    return seconds, {kind: after[kind] - before[kind] for kind in after}


def cost_ratio(engine: rt.Engine) -> float:
    """Cost of a generated token / cost of a prompt token, one stream."""

    def seconds(prompt: int, new: int) -> float:
        times = []
        for _ in range(3):
            engine.flush_cache()
            begin = time.monotonic()
            engine.generate(
                input_ids=[5 + i % 900 for i in range(prompt)],
                sampling_params={"max_new_tokens": new, "ignore_eos": True, "temperature": 0},
            )
            times.append(time.monotonic() - begin)
        return statistics.median(times)

    short, long, decoding = seconds(64, 1), seconds(640, 1), seconds(64, 65)
    return ((decoding - short) / 64) / ((long - short) / 576)


def why_live(case: Case, backend: EngineBackend) -> str:
    try:
        ways.run(case, backend, compile=True)
    except rt.TraceError as error:
        what = str(error).partition("cannot be compiled: ")[2].partition(" at ")[0]
        return f"{Path(error.where.file).name}:{error.where.line}: {what}"
    return ""


def measure(case: Case, engine: rt.Engine, bare: rt.Engine, server: rt.RuntimeEndpoint, r: float) -> dict[str, Any]:
    row: dict[str, Any] = {"row": case.row, "program": case.name, "live": why_live(case, engine.backend)}
    first = ways.ids(ways.run(case, engine.backend))
    others = [ways.ids(ways.run(case, server))]
    if not row["live"]:
        others += [ways.ids(ways.run(case, backend, compile=True)) for backend in (engine.backend, server)]
    row["equal"] = all(other == first for other in others)
    noted = NotedBackend(engine)
    engine.flush_cache()
    ways.run(case, noted, full=True)
    prompt, found = optimum(noted.notes)
    measured = sum(note.usage.cached for note in noted.notes) / sum(note.usage.prompt for note in noted.notes)
    row |= {"calls": len(noted.notes), "tokens": prompt, "expected": found / prompt, "measured": measured}
    without = EngineBackend(bare.backend.loop, bare.backend.client, bare.backend.tokenizer, bare.backend.meta)
    without.keeps = False
    cold: list[float] = []
    warm: list[float] = []
    counted: dict[str, int] = {}
    for _ in range(2):
        warm.append(one_by_one(case, engine.backend, engine)[0])
        if not cold:
            seconds, counted = one_by_one(case, without, bare)
            cold.append(seconds)
    made = r * (counted["sampled"] + counted["forced"])
    row["predicted"] = (counted["computed"] + made) / (prompt - found + made)
    row["gain"] = min(cold) / min(warm)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| row | program | compiled | equal ids | calls | prompt tokens | cached: optimum | measured | gain: predicted "
        "| measured |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        compiled = "yes" if not row["live"] else f"no: {row['live']}"
        lines.append(
            f"| {row['row']} | {row['program']} | {compiled} | {'yes' if row['equal'] else 'NO'} | {row['calls']} "
            f"| {row['tokens']:,} | {100 * row['expected']:.1f} % | {100 * row['measured']:.1f} % "
            f"| {row['predicted']:.1f} × | {row['gain']:.1f} × |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of programs, with commas")
    parser.add_argument("--save", default="", metavar="FILE", help="add the rows to this JSON file")
    parser.add_argument(
        "--table", default="", metavar="FILE", help="print the rows of such a file, and measure nothing"
    )
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(Path(arguments.table).read_text())))
        return
    chosen = [case for case in CASES if not arguments.only or case.name in arguments.only.split(",")]
    options: dict[str, Any] = {"kv_tokens": 65536, "context": 4096, "progress": False}
    rows = []
    with rt.Engine(**options) as engine, rt.Engine(**options, switches=Switches(tree=False)) as bare:
        r = cost_ratio(engine)
        print(f"r = {r:.2f}", flush=True)
        with served(engine) as url, rt.RuntimeEndpoint(url) as server:
            for case in chosen:
                rows.append(measure(case, engine, bare, server, r))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
    if arguments.save:
        place = Path(arguments.save)
        known = json.loads(place.read_text()) if place.exists() else []
        names = {(row["row"], row["program"]) for row in rows}
        place.write_text(json.dumps([*(row for row in known if (row["row"], row["program"]) not in names), *rows]))


if __name__ == "__main__":
    main()
