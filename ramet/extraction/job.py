"""``ramet.extract``: the whole job, from a schema and a source of documents to records in a file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from ramet.extraction import sources
from ramet.extraction.extractor import Extractor, Options
from ramet.extraction.output import JobHeader, Output, refuse_inputs, skip_written
from ramet.extraction.prompt import Instruction, frame, instruction
from ramet.extraction.records import Record, Totals
from ramet.extraction.schema import SchemaSource, Target, target
from ramet.extraction.sources import Document, Source
from ramet.extraction.window import in_order
from ramet.session import BackgroundSession, Session, SessionOptions

T = TypeVar("T")


class Running(Protocol):
    """A runtime that runs already, and the loop that its client lives on: an ``Engine``, a ``BackgroundSession``."""

    @property
    def session(self) -> Session: ...

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]: ...


class Extraction:
    """A job that begins when it is iterated (once), or by ``run``. Records come in the inputs' order.

    ``totals``: sums so far; ``resumed``: records that an earlier run had written (they are not given again);
    ``seconds``: of the extraction alone, without the start of the model.
    """

    def __init__(
        self,
        goal: Target,
        source: Source,
        words: Instruction,
        options: Options,
        runtime: Running | SessionOptions,
        *,
        text: str | None = None,
        id: str | None = None,
        limit: int | None = None,
        output: Path | None = None,
        overwrite: bool = False,
    ) -> None:
        self.totals = Totals()
        self.resumed = 0
        self.seconds = 0.0
        self._goal = goal
        self._words = words
        self._options = options
        self._runtime = runtime
        self._output = output
        self._overwrite = overwrite
        self._documents = itertools.islice(sources.read(source, text=text, id=id), limit)
        total = sources.count(source)
        self.total = total if total is None or limit is None else min(total, limit)
        self._begun = False
        if output is not None and isinstance(source, (str, Path)):
            refuse_inputs(output, source)

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

    def closing_line(self) -> str:
        return self.totals.closing_line(self.seconds)

    def _records(self) -> Iterator[Record]:
        with ExitStack() as stack:
            if isinstance(self._runtime, SessionOptions):
                runtime: Running = stack.enter_context(BackgroundSession(self._runtime))
            else:
                runtime = self._runtime
            session = runtime.session
            output = None
            if self._output is not None:
                output = stack.enter_context(Output(self._output, self._header(session), overwrite=self._overwrite))
                self.resumed = skip_written(self._documents, output, self.totals)
            runtime.submit(session.client.compile(self._goal.spec)).result()
            around = frame(self._words, session.template, session.tokenizer)
            extractor = Extractor(session.client, session.tokenizer, around, self._goal, session.context, self._options)
            yield from self._run(self._documents, extractor, runtime, output)

    def _run(
        self, documents: Iterator[Document], extractor: Extractor, runtime: Running, output: Output | None
    ) -> Iterator[Record]:
        started = time.monotonic()
        scheduler = runtime.session.options.scheduler
        window = min(2 * scheduler.max_rows, scheduler.max_queued)
        for _, outcome in in_order(documents, extractor, runtime.submit, window):
            if output is not None:
                output.write(outcome.record)
            self.totals.add(outcome.record, outcome.usage)
            self.seconds = time.monotonic() - started
            yield outcome.record

    def _header(self, session: Session) -> JobHeader:
        meta = session.folder.meta
        return JobHeader(
            model=f"{meta.name} {meta.sha256}",
            schema=self._goal.digest,
            prompt=self._words.digest,
            options=repr(self._options),
        )


def extract(
    schema: SchemaSource,
    source: Source,
    *,
    prompt: str | Instruction | None = None,
    text: str | None = None,
    id: str | None = None,
    limit: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    model: str = "default",
    engine: Running | None = None,
    max_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
    document_tokens: int = 0,
    fit: Literal["error", "truncate"] = "error",
) -> Extraction:
    """One record that keeps to ``schema`` for each document of ``source``.

    schema: a pydantic model, a JSON Schema as a mapping, or its JSON text.
    source: path of a .jsonl, .csv, .tsv or .txt file, or of a folder of .txt files; or an iterable of strings, mappings
    or Documents. It is read as the job goes on, and may be endless.
    prompt: the task in words, or a whole Instruction; the fields of the schema are listed behind it.
    text, id: names of the fields that hold the document and its id.
    output: a file that gets one line per document; the same call goes on where an interrupted one stopped.
    engine: an Engine that runs already; without one, ``model`` is started for this job alone.
    max_tokens, temperature, seed, document_tokens, fit: see ``Options``.
    Returns an Extraction: iterate over it, or call ``run()``.
    Raises InvalidRequest and ConstraintError; what goes wrong with one document is in its record.
    """
    goal = target(schema)
    return Extraction(
        goal,
        source,
        prompt if isinstance(prompt, Instruction) else instruction(goal, prompt),
        Options(max_tokens, temperature, seed, document_tokens, fit),
        engine if engine is not None else SessionOptions(model),
        text=text,
        id=id,
        limit=limit,
        output=None if output is None else Path(output),
        overwrite=overwrite,
    )
