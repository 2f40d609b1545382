"""The lane of every schema and regex, asked of many fresh processes: under load, with hash seeds of their own, with a
cold and with a warm cache of tables. Prints how many different answers there were.

    python benchmarks/constraint_lanes.py --runs 100
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[2] / "shared" / "cases" / "schemas.jsonl"


def patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for child in schema.values():
            yield from patterns(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from patterns(child)


def answer(cases: Path, tables: Path) -> str:
    """Digest of all lanes, and how many there are of each."""
    from ramet.runtime import store
    from ramet.runtime.constrain.compiler import Compiler
    from ramet.runtime.protocol.errors import ConstraintError
    from ramet.runtime.protocol.messages import ConstraintSpec
    from ramet.runtime.tokenizer import Tokenizer

    compiler = Compiler(Tokenizer.load(store.resolve("default", progress=False)), tables)
    schemas = [json.loads(line)["schema"] for line in cases.read_text(encoding="utf-8").splitlines()]
    regexes = sorted({pattern for schema in schemas for pattern in patterns(schema)})
    specs = [ConstraintSpec("json_schema", json.dumps(schema)) for schema in schemas]
    specs += [ConstraintSpec("regex", pattern) for pattern in regexes]
    lanes = []
    for spec in specs:
        try:
            ready = compiler.lower(spec)
            lanes.append(compiler.build(ready).lane if ready.lane == "table" else ready.lane)
        except ConstraintError as error:
            lanes.append(error.kind)
    counts = ", ".join(f"{count} {lane}" for lane, count in sorted(Counter(lanes).items()))
    return f"{hashlib.sha256(json.dumps(lanes).encode()).hexdigest()[:16]} ({counts})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--tables", type=Path, help="one answer, with tables kept here (a child's own option)")
    given = parser.parse_args()
    if given.tables is not None:
        print(answer(given.cases, given.tables))
        return
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    found: Counter[str] = Counter()
    try:
        with tempfile.TemporaryDirectory() as warm:
            for run in range(given.runs):
                with tempfile.TemporaryDirectory() as cold:
                    command = [sys.executable, __file__, "--cases", str(given.cases)]
                    command += ["--tables", warm if run % 2 else cold]
                    environment = {**os.environ, "PYTHONHASHSEED": str(run)}
                    found[subprocess.check_output(command, env=environment, text=True).strip()] += 1
    finally:
        for process in load:
            process.kill()
            process.wait()
    for name, count in found.most_common():
        print(f"{count} runs: {name}")
    print(f"{given.runs} runs, {len(found)} different answers")


if __name__ == "__main__":
    main()
