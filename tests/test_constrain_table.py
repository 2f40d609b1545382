"""The table lane answers as the engine lane does, forces the tokeniser's own ids, and is chosen by the spec alone."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ramet.runtime.constrain.compiler import Compiler, engine_constraint
from ramet.runtime.constrain.kinds import lowered
from ramet.runtime.constrain.lanes import lane_of
from ramet.runtime.constrain.schema.instances import sample
from ramet.runtime.constrain.table import TableStore, _tidy
from ramet.runtime.protocol.messages import ConstraintSpec

SPECS = [
    ConstraintSpec("choice", json.dumps(["yes", "no", "not sure", "yesterday"])),
    ConstraintSpec("choice", json.dumps(["日本", "日本語", "東京"])),
    ConstraintSpec("choice", json.dumps(["The answer is forty-two.", "The answer is unknown."])),
    ConstraintSpec("regex", r"\d{3}-\d{4}"),
    ConstraintSpec("regex", r"-?(0|[1-9]\d{0,5})(\.\d{1,3})?"),
    ConstraintSpec("regex", r"(red|green|blue)( (red|green|blue)){0,2}"),
    ConstraintSpec("regex", r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
    ConstraintSpec("regex", r"[a-f0-9]{8}-[a-f0-9]{4}"),
    ConstraintSpec("regex", r"Result: (pass|fail) \([a-z]{1,8}\)\."),
]


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)


@pytest.fixture(scope="module")
def compiler(tokenizer, tmp_path_factory):
    return Compiler(tokenizer, tmp_path_factory.mktemp("tables"))


def texts(spec: ConstraintSpec, rng: random.Random) -> list[str]:
    form = lowered(spec)
    return [sample(form.lang, rng) for _ in range(8)]


def bits(matcher, words: int) -> set[int]:
    row = np.zeros(words, np.uint32)
    matcher.fill_mask(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.text[:40])
def test_both_lanes_accept_the_same_texts(spec, compiler, tokenizer):
    table = compiler.compile(spec)
    engine = engine_constraint(lowered(spec).grammar, None, compiler.vocabulary)
    assert (table.lane, engine.lane) == ("table", "engine")
    rng = random.Random(3)
    for text in texts(spec, rng):
        cut = rng.randrange(len(text) + 1)
        for candidate in (text, text[:cut], text + "x", text[:cut] + "?" + text[cut:]):
            ids = tokenizer.encode(candidate)
            answers = []
            for constraint in (table, engine):
                matcher = constraint.matcher()
                answers.append((matcher.advance(ids), matcher.can_end, matcher.finished))
            assert answers[0] == answers[1], candidate


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.text[:40])
def test_masks_agree_where_nothing_is_forced(spec, compiler, tokenizer):
    table, engine = compiler.compile(spec), engine_constraint(lowered(spec).grammar, None, compiler.vocabulary)
    words = compiler.vocabulary.words
    for text in texts(spec, random.Random(4)):
        left, right = table.matcher(), engine.matcher()
        for token in tokenizer.encode(text):
            ours, theirs = bits(left, words), bits(right, words)
            assert token in ours
            if not left.forced() and not right.forced():
                assert ours == theirs, text
            assert left.advance([token]) and right.advance([token])
        assert set(tokenizer.end_ids) <= bits(left, words)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.text[:40])
def test_forced_ids_are_the_tokenisers_own(spec, compiler, tokenizer):
    """And the mask holds the first of them alone: with or without jumping the ids are the same."""
    forced = 0
    for text in texts(spec, random.Random(5)):
        ids = tokenizer.encode(text)
        matcher = compiler.compile(spec).matcher()
        place = 0
        while place < len(ids):
            run = matcher.forced()
            assert ids[place : place + len(run)] == run[: len(ids) - place], text
            if run:
                assert bits(matcher, compiler.vocabulary.words) - set(tokenizer.end_ids) == {run[0]}
            step = run or [ids[place]]
            assert matcher.advance(step)
            forced += len(run)
            place += len(step)
        assert matcher.can_end
    assert forced or spec.kind == "regex"


def test_rollback_and_fork(compiler, tokenizer):
    matcher = compiler.compile(SPECS[0]).matcher()
    ids = tokenizer.encode("yes")
    assert matcher.advance(ids) and matcher.can_end and not matcher.finished
    twin = matcher.fork()
    assert twin.advance(tokenizer.encode("terday")) and twin.finished
    assert matcher.advance([tokenizer.end_ids[-1]]) and matcher.finished
    assert not matcher.advance(ids)
    matcher.rollback(1 + len(ids))
    assert matcher.advance(tokenizer.encode("no")) and matcher.can_end


def test_the_lane_depends_on_the_expression_alone(tokenizer, tmp_path):
    wide = [ConstraintSpec("regex", r"[a-zA-Z0-9 ]{1,200}"), ConstraintSpec("regex", r"(?!a)[ab]+"), *SPECS]
    lanes = [lane_of(spec, lowered(spec).lang) for spec in wide]
    assert lanes == ["engine", "engine"] + ["table"] * len(SPECS)
    for _ in range(2):  # with a cold cache, then a warm one
        compiler = Compiler(tokenizer, tmp_path)
        assert [compiler.compile(spec).lane for spec in wide] == lanes


def test_a_table_from_disk_is_the_same_and_a_damaged_one_is_built_again(tokenizer, tmp_path):
    spec = SPECS[4]
    first = Compiler(tokenizer, tmp_path).compile(spec)
    (file,) = tmp_path.iterdir()
    again = Compiler(tokenizer, tmp_path).compile(spec)
    for name in ("starts", "tokens", "targets", "rows", "row_of", "final"):
        assert np.array_equal(getattr(first.table, name), getattr(again.table, name))
    file.write_bytes(file.read_bytes()[:100])
    third = Compiler(tokenizer, tmp_path).compile(spec)
    assert np.array_equal(first.table.rows, third.table.rows)


def test_regexes_mean_what_re_says(compiler, tokenizer):
    rng = random.Random(8)
    for pattern in (r"a|b|", r"^ab?$", r"\Aa+\Z", r"[^\W\d]x", r"(?i)Ab", r"a{2,3}?b", r"(?:a|ab)(?:c|bcd)", r"\.\\/"):
        compiled = compiler.compile(ConstraintSpec("regex", pattern))
        for _ in range(60):
            text = "".join(rng.choices("abcdABx1 ./\\_", k=rng.randrange(5)))
            matcher = compiled.matcher()
            taken = matcher.advance(tokenizer.encode(text)) and matcher.can_end
            assert taken == bool(re.fullmatch(pattern, text)), (pattern, text)


LANES = """
import json, sys
from pathlib import Path
from ramet.runtime.constrain.compiler import Compiler
from ramet.runtime.protocol.messages import ConstraintSpec
from ramet.runtime.tokenizer import Tokenizer
compiler = Compiler(Tokenizer.load(Path(sys.argv[1])), Path(sys.argv[2]))
specs = [ConstraintSpec(kind, text) for kind, text in json.loads(sys.argv[3])]
print([compiler.compile(spec).lane for spec in specs])
"""


@pytest.mark.slow
def test_the_lane_is_the_same_in_every_process(model_dir, tmp_path):
    """Whatever the order of sets, with a cold and with a warm cache of tables (100 processes under load:
    ``benchmarks/constraint_lanes.py``)."""
    regexes = [r"\d{3}-[a-c]+", r"(a|b|c){1,200}", r"[a-z]{1,8}( [a-z]{1,8}){0,3}", r"\w+", r"(?!a)[a-z]+"]
    specs = [("regex", regex) for regex in regexes] + [("choice", json.dumps([f"value {i}" for i in range(60)]))]
    specs.append(("json_schema", json.dumps({"enum": ["a", "b"]})))
    answers = set()
    for seed in (0, 1, 2, 3):
        tables = tmp_path / ("warm" if seed % 2 else f"cold{seed}")
        command = [sys.executable, "-c", LANES, str(model_dir), str(tables), json.dumps(specs)]
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        answers.add(subprocess.check_output(command, env=environment, text=True))
    assert len(answers) == 1 and "table" in answers.pop()


def test_tables_on_disk_are_bounded(tmp_path: Path) -> None:
    """The longest unused go first; what a killed writer left goes once it is old."""
    sizes = []
    for i in range(6):
        file = tmp_path / f"{i}.npz"
        file.write_bytes(bytes(1000))
        os.utime(file, (i, i))
        sizes.append(file)
    (tmp_path / "new.tmp").write_bytes(b"x")
    (tmp_path / "old.tmp").write_bytes(b"x")
    os.utime(tmp_path / "old.tmp", (1, 1))
    _tidy(tmp_path, 3000)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["3.npz", "4.npz", "5.npz", "new.tmp"]


def test_a_store_keeps_to_its_limit_and_to_what_is_used(tokenizer, tmp_path: Path) -> None:
    vocabulary = Compiler(tokenizer).vocabulary
    lang = lowered(ConstraintSpec("regex", "a{1,3}")).lang
    TableStore(tmp_path).get(lang, vocabulary)
    (first,) = tmp_path.glob("*.npz")
    os.utime(first, (1, 1))
    limit = 4 * first.stat().st_size
    bounded = TableStore(tmp_path, limit)
    for i in range(4, 12):
        bounded.get(lang, vocabulary)
        bounded.get(lowered(ConstraintSpec("regex", f"b{{1,{i}}}")).lang, vocabulary)
    left = list(tmp_path.glob("*.npz"))
    assert first in left and sum(file.stat().st_size for file in left) <= limit
