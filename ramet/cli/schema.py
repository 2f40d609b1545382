"""Which keywords of a JSON Schema are enforced, keyword by keyword, and what compiling it costs.

Exit status: 0 if every keyword is enforced or an annotation, 1 if the schema does not compile, so that a build can
check its schemas. FILE is a JSON Schema, or file.py:Model with a pydantic model.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.cli.options import add_model_option
from ramet.runtime.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.runtime.constrain.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSON Schema file, or file.py:Model (pydantic)")
    add_model_option(parser)
    parser.add_argument(
        "--order",
        choices=("given", "any"),
        default="given",
        help="order of an object's keys: that of the schema (given, the default), or any",
    )
    parser.add_argument("--all", action="store_true", help="list the keywords that are enforced, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from ramet.runtime import store
    from ramet.runtime.constrain.report import check
    from ramet.runtime.tokenizer import Tokenizer

    document = _document(arguments.file)
    tokenizer = Tokenizer.load(store.resolve(arguments.model))
    report = check(document, tokenizer, order=arguments.order)
    if arguments.json:
        print(json.dumps({"ok": report.ok, **asdict(report)}, ensure_ascii=False))
    else:
        _show(report, everything=arguments.all)
    return 0 if report.ok else 1


def _document(name: str) -> object:
    """The JSON Schema of a file, or of a model in a Python file. Raises InvalidRequest."""
    path, _, attribute = name.rpartition(":")
    if path.endswith(".py"):
        from ramet.extraction.schema import load_module
        from ramet.runtime.constrain.types import schema_of

        module = load_module(Path(path))
        if not hasattr(module, attribute):
            raise InvalidRequest(f"{path} has nothing named {attribute!r}: give file.py:Model", param="schema")
        return schema_of(getattr(module, attribute))
    if name.endswith(".py"):
        raise InvalidRequest(f"{name}: say which model of it, as {name}:Model", param="schema")
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(
            f"{name} cannot be read ({error.strerror}): give a JSON Schema file, or file.py:Model", param="schema"
        ) from None
    except ValueError as error:
        raise InvalidRequest(f"{name} cannot be read as a JSON Schema: {error}", param="schema") from None


def _show(report: Report, *, everything: bool) -> None:
    counts = report.counts()
    for entry in report.entries:
        if everything or entry.note:
            print(f"{entry.status:<10}  {entry.pointer}  {entry.note}".rstrip())
    print(", ".join(f"{counts[status]} {status}" for status in sorted(counts)) or "no keyword at all")
    if not report.ok:
        print(f"does not compile: {report.error}")
        return
    print(f"compiles in {report.compile_ms:.1f} ms: {report.rules} rules, {report.values} values, {report.lane} lane")
    if report.example_tokens:
        share = report.forced_tokens / report.example_tokens
        print(f"example: {report.example}")
        print(f"{report.forced_tokens} of its {report.example_tokens} tokens ({share:.0%}) are forced")
