"""The extraction job on the real model: what it promises about values, caches and budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field, field_validator

import ramet as rt
from ramet.extraction.extractor import Extractor, Options, Outcome
from ramet.extraction.optimum import optimum
from ramet.extraction.prompt import Instruction, frame
from ramet.extraction.schema import target
from ramet.extraction.sources import Document
from ramet.extraction.window import in_order

pytestmark = pytest.mark.slow

MESSAGES = [
    f"Order {code}-{number} {trouble}"
    for number in (1042, 77, 9, 310)
    for code, trouble in (
        ("AB", "has not arrived."),
        ("XY", "was charged twice!"),
        ("QQ", "came with a broken handle."),
    )
]
RULES = "You sort messages of customers of a shop. " + "Be exact, and copy what you find letter by letter. " * 12


class Ticket(BaseModel):
    order: str = Field(max_length=12, description="the order number")
    topic: Literal["delivery", "payment", "defect"]
    words: list[Annotated[str, Field(max_length=12)]] = Field(min_length=1, max_length=3)


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[rt.Engine]:
    with rt.Engine(progress=False) as running:
        yield running


def records(engine: rt.Engine, **options: object) -> list[dict[str, object]]:
    job = rt.extract(Ticket, MESSAGES, prompt=RULES, engine=engine, **options)  # type: ignore[arg-type]
    return [json.loads(record.line()) for record in job]


def test_a_record_depends_on_its_document_alone(engine: rt.Engine) -> None:
    engine.flush_cache()
    cold = records(engine, confidence=True, max_tokens=120)
    assert {record["status"] for record in cold} == {"ok"}
    assert records(engine, confidence=True, max_tokens=120) == cold
    job = rt.extract(Ticket, MESSAGES[::-1], prompt=RULES, engine=engine, confidence=True, max_tokens=120)
    assert [record.value for record in job] == [record["value"] for record in cold[::-1]]


def test_values_and_confidence_are_the_same_without_jump_forward(engine: rt.Engine) -> None:
    def without_forced(lines: list[dict[str, object]]) -> list[tuple[object, object]]:
        return [(line["value"], line["confidence"]) for line in lines]

    expected = records(engine, confidence=True, max_tokens=120)
    with rt.Engine(progress=False, jump_forward=False) as slow:
        assert without_forced(records(slow, confidence=True, max_tokens=120)) == without_forced(expected)
    for line in expected:
        confidence = line["confidence"]
        assert isinstance(confidence, dict)
        assert {"/order", "/topic", "/words/0"} <= set(confidence)
        assert all(0 < field["raw"] <= field["masked"] <= 1 for field in confidence.values())


def test_the_cached_share_is_the_structural_optimum(engine: rt.Engine) -> None:
    engine.flush_cache()
    session, goal = engine.session, target(Ticket)
    around = frame(Instruction(RULES), session.template, session.tokenizer)
    made = Extractor(session.client, session.tokenizer, around, goal, session.context, Options(max_tokens=120))
    documents = [Document(at, text) for at, text in enumerate(MESSAGES)]
    outcomes: list[Outcome] = [
        outcome for _, outcome in in_order(documents, lambda document: engine.submit(made.extract(document)), 64)
    ]
    best, prompt = optimum((outcome.prompt, outcome.answer) for outcome in outcomes)
    cached = sum(outcome.usage.cached for outcome in outcomes)
    assert sum(outcome.usage.prompt for outcome in outcomes) == prompt
    assert abs(cached - best) <= 0.01 * prompt


@pytest.mark.parametrize("budget", [8, 12, 20, 33, 47, 80])
def test_every_budget_ends_validly_or_is_refused(engine: rt.Engine, budget: int) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(target(Ticket).text))
    job = rt.extract(Ticket, MESSAGES, prompt=RULES, engine=engine, max_tokens=budget, on_length="close")
    for record in job:
        assert record.status in ("ok", "length")
        if record.status == "ok":
            validator.validate(record.value)
            answer = json.dumps(record.value, ensure_ascii=False, separators=(",", ":"))
            assert record.usage.completion_tokens <= budget
            assert len(engine.session.tokenizer.encode(answer)) <= budget + 4  # the tokeniser's own way may differ
        else:
            assert budget < 33


class Refused(BaseModel):
    topic: Literal["delivery", "payment", "defect"]
    sure: bool

    @field_validator("sure")
    @classmethod
    def never(cls, sure: bool) -> bool:
        raise ValueError("say it again")


def test_asking_again_computes_the_prefix_once(engine: rt.Engine) -> None:
    engine.flush_cache()
    job = rt.extract(Refused, MESSAGES[:1], prompt=RULES, engine=engine, retries=2)
    [record] = list(job)
    assert (record.status, record.attempts) == ("invalid", 3)
    assert "say it again" in (record.error or "")
    first = record.usage.prompt_tokens / 3
    assert job.totals.computed < 1.6 * first
    assert job.totals.cached > 1.4 * first


def test_examples_stand_in_the_shared_prefix(engine: rt.Engine) -> None:
    examples = [("Order ZZ-5 is lost.", Ticket(order="ZZ-5", topic="delivery", words=["lost"]))]
    job = rt.extract(Ticket, MESSAGES, prompt=RULES, engine=engine, examples=examples, max_tokens=120)
    assert job.run().valid == len(MESSAGES)
    assert job.totals.cached_share > 0.75


def test_failed_records_alone_are_made_again(engine: rt.Engine, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    first = rt.extract(Ticket, MESSAGES, prompt=RULES, engine=engine, output=output, max_tokens=29).run()
    assert 0 < first.valid < first.records
    before = output.read_bytes().splitlines()
    again = rt.extract(Ticket, MESSAGES, prompt=RULES, engine=engine, output=output, max_tokens=120, retry_failed=True)
    made = [record.id for record in again]
    after = output.read_bytes().splitlines()
    assert again.totals.valid == len(after) == len(before)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert (old == new) == (number not in made)
    assert not list(tmp_path.glob("*.retry*"))


def test_a_record_streams_as_text_that_grows_to_it(engine: rt.Engine) -> None:
    pieces = list(rt.stream_record(Ticket, MESSAGES[0], prompt=RULES, engine=engine, max_tokens=120))
    [record] = list(rt.extract(Ticket, MESSAGES[:1], prompt=RULES, engine=engine, max_tokens=120))
    assert len(pieces) > 3
    shots = list(rt.snapshots(pieces))
    assert shots[-1] == record.value
    assert list(rt.array_items(pieces, "words")) == record.value["words"]  # type: ignore[index]


class Codes(BaseModel):
    codes: list[Annotated[rt.Verbatim, Field(max_length=8)]] = Field(min_length=1, max_length=200)


def test_a_long_document_is_taken_in_chunks(engine: rt.Engine) -> None:
    document = "\n\n".join(f"{message} {'It was a sunny day in the shop. ' * 30}" for message in MESSAGES * 5)
    job = rt.extract(Codes, [document], prompt=RULES, engine=engine, max_tokens=40, fit="map", on_length="close")
    [record] = list(job)
    assert record.status in ("ok", "invalid"), record.error
    assert record.spans and record.chunks and record.attempts > 1
    values = record.value["codes"]  # type: ignore[index]
    assert [document[a:b] for a, b in record.spans.values()] == values
    for at, value in enumerate(values):
        start, end = record.chunks[f"/codes/{at}"]
        assert value in document[start:end]


def test_an_estimate_is_near_what_the_job_costs(engine: rt.Engine) -> None:
    job = rt.extract(Ticket, MESSAGES, prompt=RULES, engine=engine, max_tokens=120)
    estimate = job.estimate()
    totals = job.run()
    assert (estimate.documents, estimate.prompt) == (len(MESSAGES), totals.prompt)
    assert estimate.shared <= totals.cached
    assert estimate.seconds is not None and estimate.seconds > 0
