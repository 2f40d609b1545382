"""What constraints cover and cost, over public schemas and the JSON Schema test suite.

    python benchmarks/constraints.py coverage suite compile forced lanes masks hostile fuzz [--cases FOLDER]

``--cases``: the folder with schemas.jsonl and json_schema_suite_2020_12.jsonl (default: beside the checkout). Rivals
are measured where they are installed: llguidance always is, xgrammar is not a dependency. CPU time of this process,
one thread, but where "wall" is said.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from constraint_cases import hostile, mutated, sorted_keys
from ramet.runtime import store
from ramet.runtime.constrain.base import CompiledConstraint
from ramet.runtime.constrain.bounded import BoundedCompiler
from ramet.runtime.constrain.compiler import compiler_for
from ramet.runtime.constrain.schema.context import Context
from ramet.runtime.constrain.schema.graph import Graph
from ramet.runtime.constrain.schema.values import Values
from ramet.runtime.protocol.errors import ConstraintError, GenerationFailed
from ramet.runtime.protocol.messages import ConstraintSpec
from ramet.runtime.tokenizer import Tokenizer

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


class Bench:
    def __init__(self, cases: Path) -> None:
        self.tokenizer = Tokenizer.load(store.resolve("default"))
        self.compiler = compiler_for(self.tokenizer)
        self.schemas = _lines(cases / "schemas.jsonl")
        self.suite = _lines(cases / "json_schema_suite_2020_12.jsonl")
        self.row = np.zeros((self.tokenizer.vocab_size + 31) // 32, np.uint32)

    def compile(self, schema: Any, order: str) -> Any:
        spec = ConstraintSpec("json_schema", json.dumps(schema), options=json.dumps({"order": order}))
        return self.compiler.compile(spec)

    def takes(self, matcher: Any, text: str) -> bool:
        for token in self.tokenizer.encode(text):
            try:
                matcher.fill_mask(self.row)
            except GenerationFailed:
                return False
            if not int(self.row[token >> 5]) >> (token & 31) & 1 or not matcher.advance([token]):
                return False
        return bool(matcher.can_end)

    # ------------------------------------------------------------ coverage

    def coverage(self) -> None:
        for order, sort in (("any", False), ("given", True), ("given", False)):
            counts: Counter[str] = Counter()
            for case in self.schemas:
                counts[self._case(case, order, sort)] += 1
            share = counts["right"] / len(self.schemas)
            keys = "schema order" if sort else "file order"
            print(
                f"order {order:<5} keys in {keys:<12}: {share:.1%} of {len(self.schemas)} wholly right  {dict(counts)}"
            )

    def _case(self, case: dict[str, Any], order: str, sort: bool) -> str:
        try:
            compiled = self.compile(case["schema"], order)
        except ConstraintError as error:
            return f"refused ({error.kind})"
        values = Values(Context(Graph(case["schema"]))) if sort else None
        worst = "right"
        for test in case["tests"]:
            data = test["data"] if values is None else sorted_keys(test["data"], values, [values.root])
            taken = self.takes(compiled.matcher(), dumps(data))
            if taken and not test["valid"]:
                return "accepts an invalid one"
            if not taken and test["valid"]:
                worst = "rejects a valid one"
        return worst

    def suite_table(self) -> None:
        from llguidance import LLMatcher

        def plain(schema: Any) -> Any:
            if isinstance(schema, bool):
                return None  # the engine takes objects only
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
            matcher = LLMatcher(self.compiler.vocabulary.engine, grammar, log_level=0)
            return None if matcher.is_error() else matcher

        table: dict[str, list[Counter[str]]] = defaultdict(lambda: [Counter(), Counter()])
        for case in self.suite:
            ours, theirs = table[case["source"]]
            try:
                compiled = self.compile(case["schema"], "any")
            except ConstraintError:
                compiled = None
            rival = plain(case["schema"])
            for test in case["tests"]:
                text = dumps(test["data"])
                ours[_verdict(None if compiled is None else self.takes(compiled.matcher(), text), test["valid"])] += 1
                ids = self.tokenizer.encode(text)
                taken = None
                if rival is not None:
                    matcher = rival.deep_copy()
                    taken = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
                theirs[_verdict(taken, test["valid"])] += 1
        print("keyword file | tests | ramet: right / wrongly accepts + rejects / refused | llguidance")
        totals = [Counter[str](), Counter[str]()]
        for name in [*sorted(table), "all"]:
            pair = totals if name == "all" else table[name]
            cells = [f"{c['right']} / {c['accepts']}+{c['rejects']} / {c['refused']}" for c in pair]
            print(f"| {name} | {sum(pair[0].values())} | {cells[0]} | {cells[1]} |")
            if name != "all":
                for total, counts in zip(totals, pair, strict=True):
                    total.update(counts)

    # ------------------------------------------------------------ time

    def compile_times(self) -> None:
        from llguidance import LLMatcher

        engine = self.compiler.vocabulary.engine
        words = self.row.nbytes

        def rival(options: dict[str, Any]) -> Callable[[Any], None]:
            def run(schema: Any) -> None:
                grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)  # type: ignore[arg-type]
                matcher = LLMatcher(engine, grammar, log_level=0)
                if matcher.is_error():
                    raise ValueError
                matcher.unsafe_compute_mask_ptr(self.row.ctypes.data, words)

            return run

        def ours(order: str) -> Callable[[Any], None]:
            return lambda schema: self.compile(schema, order).matcher().fill_mask(self.row)

        runs: dict[str, Callable[[Any], None]] = {
            "ramet, keys as given": ours("given"),
            "ramet, keys in any order": ours("any"),
            "llguidance": rival({"whitespace_flexible": False}),
            "llguidance lenient": rival({"whitespace_flexible": False, "lenient": True}),
        }
        xgrammar = self._xgrammar()
        if xgrammar is not None:
            runs["xgrammar strict"] = xgrammar
        for name, run in runs.items():
            times = []
            for case in self.schemas:
                start = time.process_time()
                try:
                    run(case["schema"])
                except (ConstraintError, ValueError, RuntimeError):
                    continue
                times.append(1000 * (time.process_time() - start))
            print(f"{name:<26} {len(times):>4} compiled, ms with the first mask: {_spread(times)}")
        bounded = BoundedCompiler(self.tokenizer)
        bounded.warm()
        times = []
        for case in self.schemas:
            start = time.perf_counter()
            try:
                bounded.check(ConstraintSpec("json_schema", json.dumps(case["schema"])))
            except ConstraintError:
                continue
            times.append(1000 * (time.perf_counter() - start))
        bounded.close()
        print(f"{'bounded child (wall)':<26} {len(times):>4} compiled, ms:                     {_spread(times)}")

    def _xgrammar(self) -> Callable[[Any], None] | None:
        compiler = self._xgrammar_compiler()
        if compiler is None:
            return None
        import xgrammar

        mask = xgrammar.allocate_token_bitmask(1, self.tokenizer.vocab_size)

        def run(schema: Any) -> None:
            compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=True)
            xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(mask)

        return run

    def _xgrammar_compiler(self) -> Any:
        try:
            import xgrammar
        except ImportError:
            return None
        words = [self.tokenizer.hf.id_to_token(index) or "" for index in range(self.tokenizer.vocab_size)]
        info = xgrammar.TokenizerInfo(words, xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=list(self.tokenizer.end_ids))
        return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def _peer_step(
        self, spec: ConstraintSpec, ids: list[int], places: list[int]
    ) -> Callable[[], tuple[float, float]] | None:
        """One step of the same batch in xgrammar: microseconds to fill, and to accept."""
        compiler = self._xgrammar_compiler()
        if compiler is None:
            return None
        import xgrammar

        if spec.kind == "regex":
            compiled = compiler.compile_regex(spec.text)
        else:
            compiled = compiler.compile_json_schema(
                spec.text, any_whitespace=False, separators=(",", ":"), strict_mode=True
            )
        mask = xgrammar.allocate_token_bitmask(len(places), self.tokenizer.vocab_size)
        rows = []
        for place in places:
            matcher = xgrammar.GrammarMatcher(compiled)
            for token in ids[:place]:
                assert matcher.accept_token(token)
            rows.append((matcher, ids[place]))

        def step() -> tuple[float, float]:
            start = time.perf_counter()
            for place, (matcher, _) in enumerate(rows):
                matcher.fill_next_token_bitmask(mask, place)
            middle = time.perf_counter()
            for matcher, token in rows:
                matcher.accept_token(token)
            end = time.perf_counter()
            for matcher, _ in rows:
                matcher.rollback(1)
            return 1e6 * (middle - start), 1e6 * (end - middle)

        return step

    def masks(self, batch: int = 128) -> None:
        """Fill and accept, per step of a batch whose rows stand at different places of their texts: all of them, and
        those with a choice, which are the ones that a runtime asks for when it appends what is forced."""
        record = {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "age": {"type": "integer"},
                "city": {"type": "string"},
                "active": {"type": "boolean"},
            },
            "required": ["name", "age", "city", "active"],
            "additionalProperties": False,
        }
        text = '{"name":"Ada Lovelace","age":36,"city":"London, not far from the river","active":true}'
        specs = [
            ("engine lane, a record", ConstraintSpec("json_schema", json.dumps(record)), text),
            (
                "table lane, a date",
                ConstraintSpec("regex", r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
                "2024-12-24",
            ),
            ("table lane, words", ConstraintSpec("regex", r"[a-z]{1,8}( [a-z]{1,8}){0,3}"), "one more time now"),
        ]
        for name, spec, sample in specs:
            compiled = self.compiler.compile(spec)
            ids = self.tokenizer.encode(sample)
            places = range(len(ids))
            self._steps(name, spec, ids, [place for place in places if not _forced_at(compiled, ids, place)], batch)
            self._steps(f"{name}, any place", spec, ids, list(places), batch)

    def _steps(self, name: str, spec: ConstraintSpec, ids: list[int], places: list[int], batch: int) -> None:
        compiled = self.compiler.compile(spec)
        rows = np.zeros((batch, len(self.row)), np.uint32)
        matchers = []
        for index in range(batch):
            place = places[index % len(places)]
            matcher = compiled.matcher()
            matcher.advance(ids[:place])
            matchers.append((matcher, place))
        peer = self._peer_step(spec, ids, [place for _, place in matchers])
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        for _ in range(20):
            start = time.perf_counter()
            for index, (matcher, _) in enumerate(matchers):
                matcher.fill_mask(rows[index])
            middle = time.perf_counter()
            for matcher, place in matchers:
                matcher.advance([ids[place]])
            end = time.perf_counter()
            ours.append((1e6 * (middle - start), 1e6 * (end - middle)))
            for matcher, _ in matchers:
                matcher.rollback(1)
            if peer is not None:
                theirs.append(peer())
        line = f"{name:<34} batch {batch}: {_step_text(ours)}"
        if theirs:
            ratio = statistics.median(map(sum, ours)) / statistics.median(map(sum, theirs))
            line += f"; xgrammar {_step_text(theirs)}: {ratio:.2f} of its time"
        print(line)

    # ------------------------------------------------------------ forcing, lanes

    def forced(self) -> None:
        tokens = forced = runs = wrong = 0
        for case in self.schemas:
            try:
                compiled = self.compile(case["schema"], "given")
                values = Values(Context(Graph(case["schema"])))
            except ConstraintError:
                continue
            for test in case["tests"]:
                if not test["valid"]:
                    continue
                ids = self.tokenizer.encode(dumps(sorted_keys(test["data"], values, [values.root])))
                matcher = compiled.matcher()
                if not matcher.advance(ids) or not matcher.can_end:
                    continue
                matcher = compiled.matcher()
                place = 0
                while place < len(ids):
                    run = matcher.forced()[: len(ids) - place]
                    wrong += run != ids[place : place + len(run)]
                    step = run or [ids[place]]
                    matcher.advance(step)
                    forced += len(run)
                    runs += bool(run)
                    place += len(step)
                tokens += len(ids)
        print(
            f"{forced} of {tokens} tokens forced ({forced / tokens:.1%}) in {runs} runs, {wrong} of them not the text's"
        )

    def lanes(self) -> None:
        counts: Counter[str] = Counter()
        for case in self.schemas:
            try:
                counts[f"schema, {self.compile(case['schema'], 'given').lane}"] += 1
            except ConstraintError:
                counts["schema, refused"] += 1
        patterns = {pattern for case in self.schemas for pattern in _patterns(case["schema"])}
        for pattern in sorted(patterns):
            try:
                counts[f"regex, {self.compiler.compile(ConstraintSpec('regex', pattern)).lane}"] += 1
            except ConstraintError:
                counts["regex, refused"] += 1
        for name, count in sorted(counts.items()):
            print(f"{name:<20} {count}")

    # ------------------------------------------------------------ harm

    def hostile(self) -> None:
        bounded = BoundedCompiler(self.tokenizer)
        bounded.warm()
        counts: Counter[str] = Counter()
        longest = 0.0
        for name, spec in hostile():
            start = time.perf_counter()
            try:
                bounded.check(spec)
                verdict = "compiles"
            except ConstraintError as error:
                verdict = error.kind
            elapsed = time.perf_counter() - start
            longest = max(longest, elapsed)
            counts[verdict] += 1
            print(f"  {name:<44} {verdict:<12} {1000 * elapsed:8.0f} ms")
        bounded.check(ConstraintSpec("regex", "a"))
        bounded.close()
        print(f"{sum(counts.values())} hostile specifications: {dict(counts)}, longest {longest:.1f} s (wall)")

    def fuzz(self, count: int = 500) -> None:
        import jsonschema

        rng = random.Random(0)
        outcomes: Counter[str] = Counter()
        slowest = 0.0
        for _ in range(count):
            case = rng.choice(self.schemas)
            schema = mutated(case["schema"], rng)
            start = time.process_time()
            try:
                compiled = self.compile(schema, "any")
            except ConstraintError as error:
                outcomes[error.kind] += 1
                if error.kind == "crashed":
                    print(f"  crashed: {error}")
                continue
            finally:
                slowest = max(slowest, time.process_time() - start)
            try:
                kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
                validator = kind(schema, format_checker=jsonschema.FormatChecker())
                answers = [(validator.is_valid(test["data"]), test["data"]) for test in case["tests"]]
            except Exception:  # the validator gives up on a schema that makes no sense
                outcomes["no second opinion"] += 1
                continue
            for valid, data in answers:
                taken = self.takes(compiled.matcher(), dumps(data))
                outcomes[
                    "wrongly accepted" if taken and not valid else "stricter" if valid and not taken else "agree"
                ] += 1
        print(f"{count} mutated schemas: {dict(outcomes)}, slowest compile {slowest:.2f} s")


def dumps(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def _verdict(taken: bool | None, valid: bool) -> str:
    if taken is None:
        return "refused"
    return "right" if taken == valid else "accepts" if taken else "rejects"


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for child in schema.values():
            yield from _patterns(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from _patterns(child)


def _forced_at(compiled: CompiledConstraint, ids: list[int], place: int) -> bool:
    matcher = compiled.matcher()
    matcher.advance(ids[:place])
    return bool(matcher.forced())


def _step_text(times: list[tuple[float, float]]) -> str:
    fill, accept = (statistics.median(column) for column in zip(*times, strict=True))
    return f"fill {fill:.0f} + accept {accept:.0f} µs a step"


def _spread(times: list[float]) -> str:
    ordered = sorted(times)
    p50, p95 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.95))
    return f"p50 {p50:.1f}  p95 {p95:.1f}  max {ordered[-1]:.0f}"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("coverage", "suite", "compile", "forced", "lanes", "masks", "hostile", "fuzz")
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--cases", type=Path, default=CASES)
    arguments = parser.parse_args()
    bench = Bench(arguments.cases)
    names = {"suite": "suite_table", "compile": "compile_times"}
    for part in arguments.parts:
        print(f"== {part}")
        getattr(bench, names.get(part, part))()


if __name__ == "__main__":
    main()
