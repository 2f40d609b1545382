"""The extraction job on a client that answers at will: order, bounds, and one record whatever happens."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future

import pytest
from fake_extraction import Characters, FakeClient, Reply, Turns
from pydantic import BaseModel, field_validator
from ramet.runtime.protocol.errors import GenerationFailed, InvalidConstraint, InvalidRequest

from ramet.extraction.extractor import Extractor, Options, Outcome
from ramet.extraction.prompt import Instruction, frame
from ramet.extraction.schema import SchemaSource, target
from ramet.extraction.sources import Document
from ramet.extraction.window import in_order

Submit = Callable[[Coroutine[object, object, Outcome]], "Future[Outcome]"]
INSTRUCTION = Instruction("system", before="<", after=">")
OBJECT = {"type": "object"}


@pytest.fixture
def submit() -> Iterator[Submit]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def extractor(
    client: FakeClient, schema: SchemaSource = OBJECT, context: int = 8192, options: Options | None = None
) -> Extractor:
    around = frame(INSTRUCTION, Turns(), Characters())
    return Extractor(client, Characters(), around, target(schema), context, options or Options(max_tokens=100))  # type: ignore[arg-type]


def run(source: Iterable[Document], made: Extractor, submit: Submit, window: int) -> Iterator[tuple[Document, Outcome]]:
    return in_order(source, lambda document: submit(made.extract(document)), window)


def documents(number: int) -> list[Document]:
    return [Document(index, f"document {index}") for index in range(number)]


def test_records_come_in_the_inputs_order_with_a_bounded_number_under_way(submit: Submit) -> None:
    rng = random.Random(7)
    client = FakeClient(lambda prompt: Reply(seconds=rng.random() / 100))
    taken = 0

    def source() -> Iterator[Document]:
        nonlocal taken
        for document in documents(200):
            taken += 1
            yield document

    given = 0
    for document, outcome in run(source(), extractor(client), submit, window=16):
        assert outcome.record.id == document.id == given
        given += 1
        assert taken - given < 16
    assert given == 200
    assert 8 < client.most_running <= 16


def test_a_document_reaches_the_model_framed_and_as_plain_text(submit: Submit) -> None:
    client = FakeClient()
    submit(extractor(client).extract(Document(0, "[system] text"))).result()
    [request] = client.requests
    assert "".join(map(chr, request.ids)) == "[system]system\n[user]<[system] text>\n[assistant]"
    assert request.constraint is not None and request.constraint.kind == "json_schema"


@pytest.mark.parametrize(
    ("reply", "status", "said"),
    [
        (Reply('{"a":1}'), "ok", None),
        (Reply('{"a":', reason="length"), "length", "--max-tokens"),
        (Reply(error=GenerationFailed("the worker died")), "error", "the worker died"),
        (Reply(error=InvalidRequest("too long", code="context_length_exceeded")), "too_long", "too long"),
        (Reply("{", reason="stop"), "error", "not JSON"),
        (Reply('{"a":1e999}'), "error", "1e999"),
    ],
)
def test_each_end_has_its_status(submit: Submit, reply: Reply, status: str, said: str | None) -> None:
    outcome = submit(extractor(FakeClient(lambda prompt: reply)).extract(Document("d", "text"))).result()
    assert outcome.record.status == status
    assert (said is None) == (outcome.record.error is None)
    assert said is None or said in (outcome.record.error or "")
    assert outcome.record.value == ({"a": 1} if status == "ok" else None)


def test_one_failing_document_does_not_harm_the_rest(submit: Submit) -> None:
    client = FakeClient(lambda prompt: Reply(error=GenerationFailed("no")) if "document 3>" in prompt else Reply())
    statuses = [outcome.record.status for _, outcome in run(documents(6), extractor(client), submit, window=4)]
    assert statuses == ["ok", "ok", "ok", "error", "ok", "ok"]


def test_a_document_that_could_not_be_read_is_a_record_like_any_other(submit: Submit) -> None:
    client = FakeClient(lambda prompt: Reply())
    given = [Document("a", "x"), Document("b", "", "line 2 is not JSON"), Document("c", "x")]
    records = [outcome.record for _, outcome in run(given, extractor(client), submit, window=2)]
    assert [record.id for record in records] == ["a", "b", "c"]
    assert records[1].status == "error" and records[1].error == "line 2 is not JSON" and records[1].attempts == 0
    assert len(client.requests) == 2


def test_a_refused_schema_ends_the_job(submit: Submit) -> None:
    client = FakeClient(lambda prompt: Reply(error=InvalidConstraint("no such type")))
    with pytest.raises(InvalidConstraint):
        list(run(documents(50), extractor(client), submit, window=4))
    assert len(client.requests) < 10


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def must_be_even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("must be even")
        return n


@pytest.mark.parametrize(("text", "status"), [('{"n":2}', "ok"), ('{"n":3}', "invalid")])
def test_a_models_own_validators_are_heard(submit: Submit, text: str, status: str) -> None:
    outcome = submit(extractor(FakeClient(lambda prompt: Reply(text)), Even).extract(Document(0, "text"))).result()
    assert outcome.record.status == status
    assert status == "ok" or "n: Value error, must be even" in (outcome.record.error or "")
    assert outcome.record.value == {"n": int(text[5])}


def test_what_does_not_fit_is_refused_or_cut_as_asked(submit: Submit) -> None:
    size = len("[system]system\n[user]<>\n[assistant]")
    context = size + 100 + 50
    for length, fit, status, kept in (
        (50, "error", "ok", 50),
        (51, "error", "too_long", 0),
        (51, "truncate", "ok", 50),
    ):
        client = FakeClient()
        options = Options(max_tokens=100, fit=fit)  # type: ignore[arg-type]
        made = extractor(client, context=context, options=options)
        outcome = submit(made.extract(Document(0, "x" * length))).result()
        assert outcome.record.status == status
        assert sum(list(request.ids).count(ord("x")) for request in client.requests) == kept
        assert status == "ok" or "51 tokens" in (outcome.record.error or "")


def test_documents_are_cut_where_asked(submit: Submit) -> None:
    client = FakeClient()
    submit(extractor(client, options=Options(document_tokens=10)).extract(Document(0, "x" * 500))).result()
    assert list(client.requests[0].ids).count(ord("x")) == 10


def test_an_instruction_without_room_for_a_document_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="--max-tokens"):
        extractor(FakeClient(), context=120)


def test_a_stopped_consumer_cancels_what_runs(submit: Submit) -> None:
    client = FakeClient(lambda prompt: Reply(seconds=0.0 if "document 0>" in prompt else 60.0))
    results = run(documents(20), extractor(client), submit, window=8)
    next(results)
    assert client.running > 0
    results.close()  # type: ignore[attr-defined]

    async def settled() -> int:
        await asyncio.sleep(0.01)
        return client.running

    assert submit(settled()).result() == 0  # type: ignore[arg-type,comparison-overlap]


class Asked:
    """Answers the first question with 3, and what is asked again with 4; remembers the prompts."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> Reply:
        self.prompts.append(prompt)
        return Reply(self.answers[min(len(self.prompts), len(self.answers)) - 1])


def test_a_refused_answer_is_asked_for_again_with_the_refusal(submit: Submit) -> None:
    asked = Asked('{"n":3}', '{"n":4}')
    client = FakeClient(asked)
    record = submit(extractor(client, Even, options=Options(retries=2)).extract(Document(0, "text"))).result().record
    assert (record.status, record.value, record.attempts) == ("ok", {"n": 4}, 2)
    first, second = asked.prompts
    shared = first.index("text") + len("text>")
    assert second[:shared] == first[:shared]
    assert "must be even" in second and "must be even" not in first
    assert record.usage.prompt_tokens == len(first) + len(second)
    assert [request.key_path for request in client.requests] == [(), (1,)]


def test_what_is_always_refused_ends_as_invalid_with_the_refusal(submit: Submit) -> None:
    asked = Asked('{"n":3}')
    made = extractor(FakeClient(asked), Even, options=Options(retries=3))
    record = submit(made.extract(Document(0, "text"))).result().record
    assert (record.status, record.attempts, len(asked.prompts)) == ("invalid", 4, 4)
    assert "must be even" in (record.error or "")


def test_a_cut_answer_is_asked_for_again_with_twice_the_budget(submit: Submit) -> None:
    client = FakeClient(lambda prompt: Reply('{"n":4}', reason="length" if "too long" not in prompt else "end"))
    made = extractor(client, Even, options=Options(max_tokens=10, on_length="retry"))
    record = submit(made.extract(Document(0, "text"))).result().record
    assert (record.status, record.attempts) == ("ok", 2)
    assert [request.max_tokens for request in client.requests] == [10, 20]


def test_a_cut_answer_says_what_it_lacks(submit: Submit) -> None:
    client = FakeClient(lambda prompt: Reply('{"a":1,"b":"x', reason="length"))
    schema = {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["a", "b", "c"]}
    record = submit(extractor(client, schema).extract(Document(0, "text"))).result().record
    assert record.status == "length" and "before b, c" in (record.error or "")


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_of_an_empty_document_no_record_is_invented(submit: Submit, text: str) -> None:
    client = FakeClient(lambda prompt: Reply())
    source = [Document(0, "text"), Document(1, text), Document(2, "text")]
    records = [outcome.record for _, outcome in run(source, extractor(client), submit, 2)]
    assert [record.status for record in records] == ["ok", "error", "ok"]
    assert "empty" in str(records[1].error) and records[1].attempts == 0
