"""Extract one JSON record per document, each keeping to a schema.

Documents: JSONL, CSV, or a folder of .txt files. The output has one line per document, in the same order. A job that
was interrupted goes on where it stopped when the same command is given again. The exit status is 0 only if every
record is ok; the last line printed sums up what was computed and what came from the cache.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

from ramet.cli.options import add_model_option, add_runtime_options, count, positive, session_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", required=True, metavar="S", help="JSON Schema file, or file.py:Model (pydantic)")
    parser.add_argument("--input", required=True, metavar="IN", help=".jsonl, .csv, .tsv, .txt, or a folder of .txt")
    parser.add_argument("--output", required=True, metavar="OUT", help="where the records go (JSON lines)")
    parser.add_argument("--prompt", default=None, help="the task in words (text, or @FILE)")
    parser.add_argument("--text", default=None, metavar="FIELD", help="field that holds the document")
    parser.add_argument("--id", default=None, metavar="FIELD", help="field that holds the document's id")
    parser.add_argument("--limit", type=count, default=None, metavar="N", help="only the first N documents")
    parser.add_argument("--overwrite", action="store_true", help="begin anew, whatever the output file holds")
    add_model_option(parser)
    group = parser.add_argument_group("records")
    group.add_argument("--max-tokens", type=positive, default=512, help="budget of one record (512)")
    group.add_argument("--temperature", type=float, default=0.0, help="0 (default): always the likeliest token")
    group.add_argument("--seed", type=int, default=0, help="of sampled records (0)")
    group.add_argument(
        "--document-tokens", type=count, default=0, metavar="N", help="cut documents after N tokens (0: no cut)"
    )
    group.add_argument(
        "--fit",
        choices=("error", "truncate"),
        default="error",
        help="a document that does not fit the context: status too_long, or cut",
    )
    add_runtime_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from ramet.extraction import schema, sources
    from ramet.extraction.extractor import Extractor, Options
    from ramet.extraction.job import in_order, skip_written
    from ramet.extraction.output import JobHeader, Output
    from ramet.extraction.prompt import frame, instruction
    from ramet.extraction.records import Totals
    from ramet.session import BackgroundSession

    target = schema.load(arguments.schema)
    documents = sources.read(arguments.input, text=arguments.text, id=arguments.id)
    total = sources.count(arguments.input)
    if arguments.limit is not None:
        documents = itertools.islice(documents, arguments.limit)
        total = min(total, arguments.limit) if total is not None else None
    options = Options(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        document_tokens=arguments.document_tokens,
        fit=arguments.fit,
    )
    words = instruction(target, _prompt(arguments.prompt))
    settings = session_options(arguments)
    totals = Totals()
    with BackgroundSession(settings) as background:
        session = background.session
        header = JobHeader(
            model=f"{session.folder.meta.name} {session.folder.meta.sha256}",
            schema=target.digest,
            prompt=words.digest,
            options=repr(options),
        )
        with Output(Path(arguments.output), header, overwrite=arguments.overwrite) as output:
            resumed = skip_written(documents, output, totals)
            if resumed:
                print(f"{resumed} records were there already: going on after them", file=sys.stderr)
            background.submit(session.client.compile(target.spec)).result()
            around = frame(words, session.template, session.tokenizer)
            extractor = Extractor(session.client, session.tokenizer, around, target, session.context, options)
            started = time.monotonic()
            window = min(2 * settings.scheduler.max_rows, settings.scheduler.max_queued)
            with tqdm(total=total, initial=resumed, unit="doc", disable=None) as bar:
                for _, outcome in in_order(documents, extractor, background.submit, window):
                    output.write(outcome.record)
                    totals.add(outcome.record, outcome.usage)
                    bar.set_postfix_str(f"cached {totals.cached_share:.0%}", refresh=False)
                    bar.update()
            seconds = time.monotonic() - started
    for status, number in sorted(totals.statuses.items()):
        if status != "ok":
            print(
                f"{number} records have status {status}: see 'error' of these lines in {output.path}", file=sys.stderr
            )
    print(totals.closing_line(seconds))
    return 0 if totals.valid == totals.records else 1


def _prompt(given: str | None) -> str | None:
    if given is not None and given.startswith("@"):
        from ramet.runtime.protocol.errors import InvalidRequest

        try:
            return Path(given[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"--prompt {given}: {error.strerror}", param="prompt") from error
    return given
