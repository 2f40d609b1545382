"""``ramet.extract``: the whole job, from a schema and a source of documents to records in a file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Literal, Protocol, TypeVar

from ramet.extraction import examples, sources
from ramet.extraction import output as output_module
from ramet.extraction.estimate import Counts, Estimate
from ramet.extraction.examples import Example, Given
from ramet.extraction.examples import examples as read_examples
from ramet.extraction.extractor import Extractor, Options, Outcome
from ramet.extraction.finish import Closer
from ramet.extraction.optional import Optional
from ramet.extraction.output import JobHeader, Output, refuse_inputs, skip_written, with_earlier
from ramet.extraction.prompt import Instruction, frame, instruction
from ramet.extraction.records import Record, Totals
from ramet.extraction.schema import SchemaSource, Target, target
from ramet.extraction.sources import Document, Source
from ramet.extraction.window import in_order
from ramet.runtime.protocol.errors import GenerationFailed
from ramet.session import BackgroundSession, Session, SessionOptions

T = TypeVar("T")


class Running(Protocol):
    """A runtime that runs already, and the loop that its client lives on: an ``Engine``, a ``BackgroundSession``."""

    @property
    def session(self) -> Session: ...

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]: ...


@dataclass(frozen=True)
class Job:
    """What is to be done: everything that decides the records, and where they go.

    text, id: names of the fields of the inputs that hold document and id. limit: only so many inputs. output: a file
    that gets one line per input; an interrupted job goes on there. overwrite: begin anew whatever it holds.
    retry_failed: make those of its records again that are not ok, with the others left as they are.
    """

    target: Target
    source: Source
    instruction: Instruction
    examples: tuple[Example, ...] = ()
    options: Options = field(default_factory=Options)
    text: str | None = None
    id: str | None = None
    limit: int | None = None
    output: Path | None = None
    overwrite: bool = False
    retry_failed: bool = False

    def documents(self) -> Iterator[Document]:
        return itertools.islice(sources.read(self.source, text=self.text, id=self.id), self.limit)

    def header(self, session: Session) -> JobHeader:
        meta = session.folder.meta
        return JobHeader(
            model=f"{meta.name} {meta.sha256}",
            schema=self.target.digest,
            prompt=self.instruction.digest,
            examples=examples.digest(self.examples),
            options=repr(self.options),
        )

    def extractor(self, session: Session) -> Extractor:
        """Raises InvalidRequest for examples that do not keep to the schema."""
        examples.check(self.examples, self.target, session.tokenizer)
        closer = Closer(session.tokenizer) if self.options.on_length == "close" else None
        around = frame(self.instruction, session.template, session.tokenizer, self.examples)
        return Extractor(session.client, session.tokenizer, around, self.target, session.context, self.options, closer)


class Extraction:
    """A job that begins when it is iterated (once), or by ``run``. Records come in the inputs' order.

    ``totals``: sums so far; ``resumed``: records that an earlier run had written (they are not given again);
    ``seconds``: of the extraction alone, without the start of the model.
    """

    def __init__(self, job: Job, runtime: Running | SessionOptions) -> None:
        self.job = job
        self.totals = Totals()
        self.resumed = 0
        self.seconds = 0.0
        total = sources.count(job.source)
        self.total = total if total is None or job.limit is None else min(total, job.limit)
        self._runtime = runtime
        self._begun = False
        if job.output is not None and isinstance(job.source, (str, Path)):
            refuse_inputs(job.output, job.source)

    def __iter__(self) -> Iterator[Record]:
        if self._begun:
            raise RuntimeError("this extraction has begun already: make a new one")
        self._begun = True
        return self._records()

    def run(self) -> Totals:
        """Do the whole job."""
        for _ in self:
            pass
        return self.totals

    def summary(self) -> str:
        """Of what is done so far: records by status, and the slowest field."""
        return self.totals.summary()

    def closing_line(self) -> str:
        return self.totals.closing_line(self.seconds)

    def estimate(self) -> Estimate:
        """What the job will cost, from token counts and the time of the first document. Nothing is written."""
        with ExitStack() as stack:
            runtime = self._start(stack)
            extractor = self.job.extractor(runtime.session)
            first, counts = None, Counts(prefix=len(extractor.frame.prefix), suffix=len(extractor.frame.suffix))
            for document in self.job.documents():
                if first is None and not document.fault:
                    began = time.monotonic()
                    outcome = runtime.submit(extractor.extract(document)).result()
                    first = (outcome.usage, time.monotonic() - began)
                counts.add(len(extractor.visible(document)[0]))
            return counts.estimate(first, runtime.session.options.scheduler.max_rows)

    def _start(self, stack: ExitStack) -> Running:
        if isinstance(self._runtime, SessionOptions):
            return stack.enter_context(BackgroundSession(self._runtime))
        return self._runtime

    def _records(self) -> Iterator[Record]:
        with ExitStack() as stack:
            runtime = self._start(stack)
            session, job = runtime.session, self.job
            items: Iterator[tuple[Document, bytes | None]] = ((document, None) for document in job.documents())
            output, place = None, job.output
            if place is not None:
                header = job.header(session)
                again = job.retry_failed and place.exists()
                if again:
                    output_module.compare(place, header, ignore="options")
                    items = with_earlier(job.documents(), place)
                to = place.with_name(place.name + ".retry") if again else place
                output = stack.enter_context(Output(to, header, overwrite=job.overwrite))
                self.resumed = skip_written((document for document, _ in items), output, self.totals)
            runtime.submit(session.client.compile(job.target.binding.spec("any text"))).result()
            yield from self._run(items, job.extractor(session), runtime, output)
            if output is not None and place is not None and output.path != place:
                output.close()
                output_module.replace(place, output.path)

    def _run(
        self,
        items: Iterator[tuple[Document, bytes | None]],
        extractor: Extractor,
        runtime: Running,
        output: Output | None,
    ) -> Iterator[Record]:
        def start(item: tuple[Document, bytes | None]) -> Future[Outcome | None]:
            if item[1] is None:
                return runtime.submit(extractor.extract(item[0]))
            kept: Future[Outcome | None] = Future()
            kept.set_result(None)
            return kept

        started = time.monotonic()
        scheduler = runtime.session.options.scheduler
        window = min(2 * scheduler.max_rows, scheduler.max_queued)
        for (_, line), outcome in in_order(items, start, window):
            if outcome is None:
                assert line is not None and output is not None
                output.write(line)
                self.totals.count("ok")
                continue
            if output is not None:
                output.write(outcome.record.line())
            self.totals.add(outcome.record, outcome.usage, outcome.fields)
            self.seconds = time.monotonic() - started
            yield outcome.record


def extract(
    schema: SchemaSource,
    source: Source,
    *,
    prompt: str | Instruction | None = None,
    text: str | None = None,
    id: str | None = None,
    examples: Iterable[Given] | str | Path = (),
    limit: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    retry_failed: bool = False,
    model: str = "default",
    engine: Running | None = None,
    max_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
    document_tokens: int = 0,
    fit: Literal["error", "truncate", "map"] = "error",
    retries: int = 0,
    on_length: Literal["error", "retry", "close"] = "error",
    confidence: bool = False,
    optional: Optional = "model",
) -> Extraction:
    """One record that keeps to ``schema`` for each document of ``source``.

    schema: a pydantic model, a JSON Schema as a mapping, or its JSON text.
    source: path of a .jsonl, .csv, .tsv or .txt file, or of a folder of .txt files; or an iterable of strings, mappings
    or Documents. It is read as the job goes on, and may be endless.
    prompt: the task in words, or a whole Instruction; the fields of the schema are listed behind it.
    examples: pairs (text, record), or a JSONL file of {"text": ..., "value": ...}; they stand in the shared prefix.
    text, id, limit, output, overwrite, retry_failed: see ``Job``.
    engine: an Engine that runs already; without one, ``model`` is started for this job alone.
    max_tokens, temperature, seed, document_tokens, fit, retries, on_length, confidence: see ``Options``.
    optional: who decides on fields that the schema does not require, see ``optional.py``.
    Returns an Extraction: iterate over it, or call ``run()``.
    Raises InvalidRequest and ConstraintError; what goes wrong with one document is in its record.
    """
    goal = target(schema, optional)
    job = Job(
        target=goal,
        source=source,
        instruction=prompt if isinstance(prompt, Instruction) else instruction(goal, prompt),
        examples=tuple(read_examples(examples)),
        options=Options(max_tokens, temperature, seed, document_tokens, fit, retries, on_length, confidence),
        text=text,
        id=id,
        limit=limit,
        output=None if output is None else Path(output),
        overwrite=overwrite,
        retry_failed=retry_failed,
    )
    return Extraction(job, engine if engine is not None else SessionOptions(model))


def stream_record(
    schema: SchemaSource,
    document: str,
    *,
    prompt: str | Instruction | None = None,
    model: str = "default",
    engine: Running | None = None,
    max_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
) -> Iterator[str]:
    """The record of one document as JSON text, in pieces as they are written: see ``snapshots`` and ``array_items``.

    Raises GenerationFailed at the end where the record is not ok: the message says why.
    """
    goal = target(schema)
    job = Job(
        target=goal,
        source=[document],
        instruction=prompt if isinstance(prompt, Instruction) else instruction(goal, prompt),
        options=Options(max_tokens, temperature, seed),
    )
    pieces: Queue[str | None] = Queue()
    with ExitStack() as stack:
        runtime: Running = engine or stack.enter_context(BackgroundSession(SessionOptions(model)))
        extractor = job.extractor(runtime.session)
        done = runtime.submit(extractor.extract(Document(0, document), lambda chunk: pieces.put(chunk.text)))
        done.add_done_callback(lambda _: pieces.put(None))
        try:
            while (piece := pieces.get()) is not None:
                if piece:
                    yield piece
            record = done.result().record
        finally:
            done.cancel()
    if record.status != "ok":
        raise GenerationFailed(f"the record has status {record.status}: {record.error}")
