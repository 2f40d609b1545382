"""A compile under limits ends in time, says which way it failed, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from ramet.runtime.constrain import compile
from ramet.runtime.constrain.bounded import BoundedCompiler, raise_verdict
from ramet.runtime.constrain.child import Verdict, verdict_of
from ramet.runtime.constrain.compiler import Compiler
from ramet.runtime.constrain.engine import EngineConstraint
from ramet.runtime.frontend.compile_check import BoundedCompile
from ramet.runtime.protocol.errors import (
    ConstraintCrashed,
    ConstraintTimeout,
    ConstraintTooComplex,
    GenerationFailed,
    InvalidConstraint,
    UnsupportedConstraint,
)
from ramet.runtime.protocol.messages import ConstraintSpec


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from ramet.runtime.tokenizer import Tokenizer

    return Tokenizer.load(model_dir)


@pytest.fixture(scope="module")
def compiler(tokenizer):
    bounded = BoundedCompiler(tokenizer)
    bounded.warm()
    yield bounded
    bounded.close()


def children() -> set[int]:
    """Compiling processes of this one that run."""
    mine = psutil.Process().children(recursive=True)
    return {child.pid for child in mine if "ramet.runtime.constrain.child" in child.cmdline()}


def test_a_check_uses_the_child_that_was_warmed_up(tokenizer):
    before = children()
    compile = BoundedCompile(tokenizer)
    compile.warm()
    compile(ConstraintSpec("regex", "a+"))  # also while the child still starts
    [pid] = children() - before
    compile(ConstraintSpec("regex", "b+"))
    assert children() - before == {pid}
    compile.close()
    assert children() == before
    with pytest.raises(ConstraintCrashed, match="closed"):
        compile(ConstraintSpec("regex", "c+"))


@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_closing_while_it_warms_up_leaves_nothing(tokenizer, after_s):
    before = children()
    compile = BoundedCompile(tokenizer)
    started = time.monotonic()
    compile.warm()
    time.sleep(after_s)
    compile.close()
    assert time.monotonic() - started < after_s + 2, "closing does not wait for the child"
    compile._warming.join(60)
    assert children() == before


def test_closing_ends_what_starts_and_what_compiles(tokenizer):
    before = children()
    slow = schema({"properties": {f"p{i}": {"pattern": f"^(a|b){{{i}}}$"} for i in range(8000)}})
    for warm, after_s in ((False, 0.2), (True, 0.2)):
        compiler = BoundedCompiler(tokenizer, seconds=60)
        if warm:
            compiler.warm()
        with ThreadPoolExecutor(1) as pool:
            check = pool.submit(compiler.check, slow)
            time.sleep(after_s)
            started = time.monotonic()
            compiler.close()
            with pytest.raises(ConstraintCrashed):
                check.result(30)
            assert time.monotonic() - started < 2
        assert children() == before


def schema(document) -> ConstraintSpec:
    return ConstraintSpec("json_schema", json.dumps(document))


def test_good_specifications_pass(compiler):
    compiler.check(schema({"type": "object", "properties": {"a": {"type": "integer"}}}))
    compiler.check(ConstraintSpec("regex", "[a-z]{1,8}"))


def test_verdicts_keep_their_kind(compiler):
    with pytest.raises(InvalidConstraint):
        compiler.check(schema({"type": "thing"}))
    with pytest.raises(UnsupportedConstraint) as caught:
        compiler.check(schema({"items": {"not": {"uniqueItems": True}}}))
    assert (caught.value.keyword, caught.value.pointer) == ("uniqueItems", "/items/not/uniqueItems")
    with pytest.raises(ConstraintTooComplex):
        compiler.check(schema({"patternProperties": {f"x{i}": {"const": i} for i in range(9)}}))


@pytest.mark.parametrize(
    ("kind", "error"),
    [("timed_out", ConstraintTimeout), ("crashed", ConstraintCrashed), ("too_complex", ConstraintTooComplex)],
)
def test_every_verdict_has_its_error(kind, error):
    with pytest.raises(error):
        raise_verdict(Verdict(kind, "why"))
    raise_verdict(Verdict())


def test_a_compile_that_takes_too_long_is_stopped_and_the_next_one_works(tokenizer):
    bounded = BoundedCompiler(tokenizer, seconds=0.05)
    bounded.warm()
    try:
        start = time.monotonic()
        with pytest.raises(ConstraintTimeout):
            bounded.check(schema({"properties": {f"p{i}": {"pattern": f"^(a|b){{{i}}}$"} for i in range(8000)}}))
        assert time.monotonic() - start < 5
        bounded.check(schema({"type": "integer"}))
    finally:
        bounded.close()


def test_the_check_after_a_killed_one_waits_for_the_replacement(tokenizer):
    before = children()
    bounded = BoundedCompiler(tokenizer, seconds=0.05)
    bounded.warm()
    try:
        with pytest.raises(ConstraintTimeout):
            bounded.check(schema({"properties": {f"p{i}": {"pattern": f"^(a|b){{{i}}}$"} for i in range(8000)}}))
        bounded._seconds = 60
        bounded.check(schema({"type": "integer"}))
        assert len(children() - before) == 1
    finally:
        bounded.close()


def test_a_child_that_was_killed_while_idle_is_not_asked(tokenizer):
    before = children()
    compiler = BoundedCompiler(tokenizer)
    try:
        compiler.check(ConstraintSpec("regex", "a"))
        (idle,) = children() - before
        psutil.Process(idle).kill()
        time.sleep(0.1)
        compiler.check(ConstraintSpec("regex", "b"))
        assert not psutil.pid_exists(idle)  # collected, too
    finally:
        compiler.close()


def test_a_compile_that_takes_too_much_memory_is_stopped(tokenizer):
    bounded = BoundedCompiler(tokenizer, seconds=30, megabytes=8)
    bounded.warm()
    try:
        with pytest.raises(ConstraintTooComplex, match="8 MB"):
            bounded.check(schema({"properties": {f"p{i}": {"pattern": f"^(a|b){{{i}}}$"} for i in range(15000)}}))
    finally:
        bounded.close()


def test_closing_ends_the_child(tokenizer):
    bounded = BoundedCompiler(tokenizer)
    bounded.warm()
    (child,) = bounded._idle
    pid = child._process.pid
    bounded.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (
            schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
            '{"a":1}',
            '{"a":""}',
        ),
        (
            schema({"properties": {"t": {"items": {"type": "string"}, "uniqueItems": True}}}),
            '{"t":["x"]}',
            '{"t":["x","x"]}',
        ),
        (
            schema({"additionalProperties": {"uniqueItems": True}, "propertyNames": {"pattern": "^a"}}),
            '{"a":[1]}',
            '{"ab":[1,1]}',
        ),
        (ConstraintSpec("regex", r"\d{3}-[a-c]+"), "123-ab", "123-d"),
        (ConstraintSpec("choice", json.dumps(["yes", "no", "yesterday"])), "yesterday", "yest"),
    ],
)
def test_a_worker_that_gets_the_lowered_form_has_the_same_constraint(compiler, tokenizer, spec, good, bad):
    lowered = compiler.check(spec)
    assert lowered.kind == "lowered"
    first, second = compile(spec, tokenizer), compile(lowered, tokenizer)
    assert first.lane == second.lane
    for text in (good, bad, good[:-1]):
        answers = []
        for constraint in (first, second):
            matcher = constraint.matcher()
            answers.append((matcher.advance(tokenizer.encode(text)), matcher.can_end, matcher.forced()))
        assert answers[0] == answers[1]
    matcher = second.matcher()
    assert matcher.advance(tokenizer.encode(good)) and matcher.can_end
    matcher = second.matcher()
    assert not (matcher.advance(tokenizer.encode(bad)) and matcher.can_end)


class Unwritable:
    """A matcher whose first mask fails, as the engine's may."""

    def forced(self):
        return []

    def fill_mask(self, row):
        raise GenerationFailed("too many expressions")


def test_a_constraint_that_fails_with_its_first_mask_is_refused(tokenizer, monkeypatch):
    """The child begins what it compiled, so that no worker is the first to find out."""
    compiler = Compiler(tokenizer)
    spec = schema({"type": "integer"})
    assert verdict_of(compiler, spec).kind == ""
    monkeypatch.setattr(EngineConstraint, "matcher", lambda self: Unwritable())
    assert verdict_of(compiler, spec).kind == "too_complex"
