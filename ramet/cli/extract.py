"""Extract one JSON record per document, each keeping to a schema.

Documents: JSONL, CSV, or a folder of .txt files. The output has one line per document, in the same order. A job that
was interrupted goes on where it stopped when the same command is given again. The exit status is 0 only if every
record is ok; the last line printed sums up what was computed and what came from the cache.
"""

from __future__ import annotations

import argparse
import sys
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
    parser.add_argument("--retry-failed", action="store_true", help="make the records again that are not ok")
    parser.add_argument("--estimate", action="store_true", help="only say what the job will cost; nothing is written")
    parser.add_argument("--examples", default=None, metavar="FILE", help='worked examples, {"text": ..., "value": ...}')
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
        choices=("error", "truncate", "map"),
        default="error",
        help="a document that does not fit the context: status too_long (error, the default), or cut",
    )
    group.add_argument(
        "--on-length",
        choices=("error", "retry", "close"),
        default="error",
        help="a record that --max-tokens would cut: status length, asked again with twice the budget, or ended in the "
        "shortest way that the schema allows",
    )
    group.add_argument(
        "--retries", type=count, default=0, metavar="K", help="ask again up to K times when a validator refuses (0)"
    )
    group.add_argument(
        "--optional",
        choices=("model", "omit", "null"),
        default="model",
        help="fields that the schema does not require: the model decides, they are left out, or null is written",
    )
    group.add_argument("--confidence", action="store_true", help="say how sure the model was of each field")
    add_runtime_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from ramet.extraction import schema
    from ramet.extraction.examples import examples
    from ramet.extraction.extractor import Options
    from ramet.extraction.job import Extraction, Job
    from ramet.extraction.output import refuse_inputs
    from ramet.extraction.prompt import instruction

    prompt = arguments.prompt or ""
    refuse_inputs(
        Path(arguments.output),
        arguments.schema.rpartition(":")[0] or arguments.schema,
        *([prompt[1:]] if prompt.startswith("@") else []),
        *([arguments.examples] if arguments.examples else []),
    )
    goal = schema.load(arguments.schema, arguments.optional)
    job = Extraction(
        Job(
            target=goal,
            source=arguments.input,
            instruction=instruction(goal, _prompt(arguments.prompt)),
            examples=tuple(examples(arguments.examples)) if arguments.examples else (),
            options=Options(
                max_tokens=arguments.max_tokens,
                temperature=arguments.temperature,
                seed=arguments.seed,
                document_tokens=arguments.document_tokens,
                fit=arguments.fit,
                retries=arguments.retries,
                on_length=arguments.on_length,
                confidence=arguments.confidence,
            ),
            text=arguments.text,
            id=arguments.id,
            limit=arguments.limit,
            output=Path(arguments.output),
            overwrite=arguments.overwrite,
            retry_failed=arguments.retry_failed,
        ),
        session_options(arguments),
    )
    if arguments.estimate:
        print(job.estimate())
        return 0
    with tqdm(total=job.total, unit="doc", disable=None) as bar:
        for _ in job:
            bar.set_postfix_str(f"cached {job.totals.cached_share:.0%}", refresh=False)
            bar.update(job.totals.records - bar.n)
    if job.resumed:
        print(f"{job.resumed} of the records were there already", file=sys.stderr)
    print(job.summary(), file=sys.stderr)
    if job.totals.valid < job.totals.records:
        print(f"the lines of the others say why ({arguments.output})", file=sys.stderr)
    print(job.closing_line())
    return 0 if job.totals.valid == job.totals.records else 1


def _prompt(given: str | None) -> str | None:
    if given is not None and given.startswith("@"):
        from ramet.runtime.protocol.errors import InvalidRequest

        try:
            return Path(given[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"--prompt {given}: {error.strerror}", param="prompt") from error
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"--prompt {given} is not UTF-8 ({error})", param="prompt") from error
    return given
