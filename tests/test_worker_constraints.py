"""Constraints in the worker: the cache of compiled ones, and real matchers under resume, splits and jump-forward."""

from __future__ import annotations

import functools
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from ramet.kernels.ops import SampleBatch, SampleResult
from ramet.runtime.protocol.errors import ConstraintTooComplex
from ramet.runtime.protocol.messages import ConstraintFailed, ConstraintSpec, Sampling, Stops
from ramet.runtime.protocol.randomness import uniform
from ramet.runtime.worker.constraints import ConstraintCache, ConstraintUnavailable
from ramet.runtime.worker.core import WorkerCore
from worker_fakes import Driver, FakeRunner, Outcome, Request, ScriptConstraint, alone, compile_script, spec

# ------------------------------------------------------------------------------------------------ the cache


def test_the_least_recently_used_goes_first_and_comes_back_when_asked_for() -> None:
    compiled: list[str] = []

    def counting(given: ConstraintSpec) -> ScriptConstraint:
        compiled.append(given.text)
        return compile_script(given)

    cache = ConstraintCache(counting, limit_bytes=250)  # two of 100
    specs = {key: spec([[n]]) for n, key in enumerate("abc", start=1)}
    for key in "ab":
        cache.add(key, specs[key])
    cache.matcher("a")
    cache.add("c", specs["c"])
    assert cache.bytes == 200
    compiled.clear()
    cache.matcher("a")
    cache.matcher("c")
    assert compiled == []
    cache.matcher("b")
    assert compiled == [specs["b"].text] and cache.bytes == 200


def test_the_same_key_is_compiled_once_and_another_spec_under_it_anew() -> None:
    compiled: list[str] = []
    cache = ConstraintCache(lambda given: (compiled.append(given.text), compile_script(given))[1], 1000)
    for _ in range(3):
        cache.add("k", spec([[1]]))
    cache.add("k", spec([[2]]))
    assert len(compiled) == 2 and cache.bytes == 100
    assert cache.matcher("k").forced() == [2]


def test_failures_keep_their_kind_and_are_reported_once() -> None:
    def failing(given: ConstraintSpec) -> ScriptConstraint:
        if given.kind == "complex":
            raise ConstraintTooComplex("too many states")
        raise OSError("boom")

    cache = ConstraintCache(failing, 1000)
    for _ in range(2):
        cache.add("c", ConstraintSpec("complex", ""))
        cache.add("b", ConstraintSpec("broken", ""))
    assert cache.take_failures() == [
        ConstraintFailed("c", "too_complex", "too many states"),
        ConstraintFailed("b", "crashed", "OSError: boom"),
    ]
    assert cache.take_failures() == []
    for key, part in (("c", "too many states"), ("never-sent", "not sent")):
        with pytest.raises(ConstraintUnavailable, match=part):
            cache.matcher(key)


def test_rows_go_on_while_another_ones_constraint_is_compiled() -> None:
    gate = threading.Event()

    def slow(given: ConstraintSpec) -> ScriptConstraint:
        assert gate.wait(10)
        return compile_script(given)

    runner = FakeRunner()
    with ThreadPoolExecutor(1) as compiler:
        driver = Driver(WorkerCore(runner, slow, compiler=compiler), runner)
        free = Request([3, 4, 5], max_tokens=6)
        held = Request([7] * 9, constraint=spec([[4], [5, 6], [7], [8, 9]]))
        lost = Request([7], constraint=ConstraintSpec("unheard-of", ""))
        for row, request in enumerate((free, held, lost)):
            driver.add(row, request)
        for _ in range(3):
            driver.step(lambda: 2)
        assert len(driver.outcomes[0].ids) > 0
        assert driver.outcomes[1] == driver.outcomes[2] == Outcome()
        gate.set()
        outcomes = driver.finish(lambda: 2)
    assert outcomes[0].essence() == alone(free).essence()
    assert outcomes[1].essence() == alone(held).essence()
    assert outcomes[2].end is not None and outcomes[2].end.reason == "error"
    assert [failure.kind for failure in driver.core.take_failures()] == ["unsupported"]


# ------------------------------------------------------------------------------------------------ real matchers

SCHEMAS = [
    {
        "type": "object",
        "properties": {
            "first name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["student", "teacher", "stud farm"]},
            "ok": {"type": "boolean"},
            "when": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["first name", "kind", "ok", "when"],
        "additionalProperties": False,
    },
    {"enum": ["alpha beta gamma", "alpha beta delta", "alphabet"]},
    {"type": "array", "items": {"const": "a long constant text, twice"}, "minItems": 2, "maxItems": 2},
]


class RealVocabularyRunner(FakeRunner):
    """The scripted device with the default model's vocabulary: logits by hash, the mask decides most."""

    def __init__(self, token_bytes: list[bytes], end_ids: tuple[int, ...]) -> None:
        super().__init__(16)
        self.token_bytes, self.end_ids, self.vocab_size = token_bytes, end_ids, len(token_bytes)

    def _logits(self, prefix: bytes) -> np.ndarray:
        rng = np.random.default_rng(int.from_bytes(prefix, "little"))
        return rng.standard_normal(self.vocab_size, dtype=np.float32)

    def sample(self, logits: np.ndarray, batch: SampleBatch) -> SampleResult:
        drawn = np.full(len(logits), -1, np.int32)
        for i in range(len(logits)):
            assert batch.mask is not None and batch.masked is not None and batch.masked[i]
            bits = np.unpackbits(batch.mask[i].view(np.uint8), bitorder="little")[: self.vocab_size]
            allowed = np.nonzero(bits)[0]
            if len(allowed):
                pick = uniform(int(batch.key[i]), int(batch.position[i]))
                drawn[i] = allowed[np.argsort(-logits[i, allowed], kind="stable")[int(pick * min(len(allowed), 4))]]
        zeros = np.zeros(len(logits), np.float32)
        none = np.zeros((len(logits), 0))
        return SampleResult(drawn, zeros, zeros, none.astype(np.int32), none.astype(np.float32))


@pytest.fixture(scope="module")
def real(model_dir: Path):  # type: ignore[no-untyped-def]
    from ramet.runtime import constrain, store
    from ramet.runtime.tokenizer import Tokenizer

    folder = store.open(model_dir)
    tokenizer = Tokenizer.load(folder)
    compile_real = functools.partial(constrain.compile, tokenizer=tokenizer)

    def driver(*, jump_forward: bool = True) -> Driver:
        runner = RealVocabularyRunner(list(tokenizer.token_table), tokenizer.end_ids)
        return Driver(WorkerCore(runner, compile_real, jump_forward=jump_forward), runner)

    return tokenizer, driver


@pytest.mark.parametrize("schema", SCHEMAS, ids=["object", "enum", "array"])
@pytest.mark.parametrize("logprobs", [-1, 0])
def test_real_matchers_under_resume_and_splits(real, schema: object, logprobs: int) -> None:  # type: ignore[no-untyped-def]
    tokenizer, driver = real
    constraint = ConstraintSpec("json_schema", json.dumps(schema))
    for seed in range(4):
        choose = random.Random(seed)
        request = Request(
            [100, 200, 300],
            max_tokens=300,
            sampling=Sampling(temperature=0.0, key=seed),
            constraint=constraint,
            logprobs=logprobs,
        )
        undisturbed = driver()
        undisturbed.add(1, request)
        reference = undisturbed.finish(steps=2000)[1]
        assert reference.end is not None and reference.end.reason == "end", reference.end
        json.loads(tokenizer.decode(reference.ids))

        disturbed = driver()
        disturbed.add(1, request)
        while disturbed.outcomes[1].end is None:
            if choose.random() < 0.3:
                disturbed.add(1, request, disturbed.outcomes[1])
            disturbed.step(lambda choose=choose: choose.choice([1, 2, 17]))
        assert disturbed.outcomes[1].essence() == reference.essence()


def test_a_cut_by_length_or_stop_lies_inside_the_language(real) -> None:  # type: ignore[no-untyped-def]
    tokenizer, driver = real
    constraint = ConstraintSpec("json_schema", json.dumps(SCHEMAS[0]))
    full: Outcome | None = None
    for limit in (300, 1, 2, 3, 5, 9):
        run = driver()
        run.add(1, Request([9, 8], max_tokens=limit, constraint=constraint))
        outcome = run.finish(steps=2000)[1]
        full = full or outcome
        assert outcome.ids == full.ids[:limit]
        assert outcome.end is not None and outcome.end.reason == ("end" if limit >= len(full.ids) else "length")
    assert full is not None
    run = driver()
    run.add(1, Request([9, 8], max_tokens=300, constraint=constraint, stops=Stops(strings=(b'"kind"',))))
    cut = run.finish(steps=2000)[1]
    assert cut.end is not None and cut.end.stop is not None
    text = tokenizer.decode(full.ids)
    kept = tokenizer.decode(cut.ids[: cut.end.stop.at - 2]) + cut.end.stop.leftover
    assert kept == text[: text.index(b'"kind"')]


def test_scripted_and_engine_rows_share_a_batch(real) -> None:  # type: ignore[no-untyped-def]
    """Several constraints at once give what each gives alone."""
    _, driver = real
    requests = [
        Request([5 + n], max_tokens=60, constraint=ConstraintSpec("json_schema", json.dumps(schema)))
        for n, schema in enumerate(SCHEMAS)
    ]
    together = driver()
    for row, request in enumerate(requests):
        together.add(row, request)
    outcomes = together.finish(lambda: 5, steps=2000)
    for row, request in enumerate(requests):
        single = driver()
        single.add(1, request)
        assert single.finish(steps=2000)[1].essence() == outcomes[row].essence()
    assert alone(Request([3])).end is not None
