"""Run a @function of a program over many arguments, one record per line of arguments.

Each input line is a JSON object of the function's arguments; a field "id" that is no argument names the record. The
value of a record is what the function returns, or else its named variables. The exit status is 0 only if every record
is ok; the last line printed sums up what was computed and what came from the cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ramet.cli.options import add_model_option, add_runtime_options, count, positive, session_options
from ramet.runtime.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from ramet.extraction.records import Record, Totals
    from ramet.frontend_lang import Function, State
    from ramet.runtime.protocol.messages import Usage
    from ramet.session import SessionOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="PROGRAM", help="file.py:function")
    parser.add_argument("--input", required=True, metavar="IN", help="arguments: one JSON object per line")
    parser.add_argument("--output", required=True, metavar="OUT", help="where the records go (JSON lines)")
    parser.add_argument("--limit", type=count, default=None, metavar="N", help="only the first N lines")
    parser.add_argument("--overwrite", action="store_true", help="begin anew, whatever the output file holds")
    parser.add_argument("--trace", default=None, metavar="HTML", help="write a page of all calls and their costs")
    parser.add_argument("--parallel", type=positive, default=None, metavar="N", help="calls of the function at once")
    add_model_option(parser)
    add_runtime_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from ramet.extraction.output import refuse_inputs

    program = load_program(arguments.program)
    lines = itertools.islice(read_arguments(Path(arguments.input), program.arg_names), arguments.limit)
    output = Path(arguments.output)
    refuse_inputs(output, arguments.input, arguments.program.rpartition(":")[0])
    if output.exists() and output.stat().st_size and not arguments.overwrite:
        raise InvalidRequest(f"{output} exists: give another --output, or --overwrite", param="output")
    with _engine(session_options(arguments)) as engine, output.open("wb") as out:
        started = time.monotonic()
        traced: list[State[Any]] | None = None if arguments.trace is None else []
        try:
            totals = run_lines(program, lines, out, engine, arguments.parallel or "auto", traced)
        except SystemExit as exit:
            return _ended(exit, output)
        seconds = time.monotonic() - started
    if traced is not None:
        from ramet.frontend_lang import write_trace

        write_trace(arguments.trace, traced)
        print(f"the calls are drawn in {arguments.trace}", file=sys.stderr)
    if totals.valid != totals.records:
        print(f"{totals.records - totals.valid} records failed: their lines say why ({output})", file=sys.stderr)
    print(totals.closing_line(seconds))
    return 0 if totals.valid == totals.records else 1


def _ended(exit: SystemExit, output: Path) -> int:
    """The program called ``sys.exit``: the job ends with its code, and says so where that is an error."""
    code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
    if code:
        said = "" if isinstance(exit.code, int) else f": {exit.code}"
        print(f"ramet: the program ended the job with exit code {code}{_place(exit)}{said}", file=sys.stderr)
        print(f"ramet: the records before that are in {output}", file=sys.stderr)
    return code


def run_lines(
    program: Function[Any],
    lines: Iterable[tuple[str | int, Mapping[str, Any] | InvalidRequest]],
    out: BinaryIO,
    backend: Any,
    parallel: int | str = "auto",
    traced: list[State[Any]] | None = None,
) -> Totals:
    """Run ``program`` once per line, a bounded number at a time, and write one record each, in the lines' order.
    ``traced`` gets the states."""
    from tqdm import tqdm

    from ramet.extraction.records import Record, Totals
    from ramet.runtime.protocol.messages import Usage

    totals = Totals()
    read: deque[tuple[str | int, InvalidRequest | None]] = deque()
    """Lines whose record is not written yet, with what is wrong with those that could not be read."""

    def items() -> Iterator[Mapping[str, Any]]:
        for id, given in lines:
            if isinstance(given, InvalidRequest):
                read.append((id, given))
            else:
                read.append((id, None))
                yield given

    def write(record: Record, usage: Usage) -> None:
        out.write(record.line())
        totals.add(record, usage)

    def write_unread() -> None:
        while read and (fault := read[0][1]) is not None:
            write(Record(read.popleft()[0], "error", error=str(fault), attempts=0), Usage())

    states = program.run_batch(items(), generator_style=True, num_threads=parallel, backend=backend)
    for state in tqdm(states, unit="call", disable=None):
        write_unread()
        write(*as_record(read.popleft()[0], state))
        if traced is not None:
            traced.append(state)
    write_unread()
    return totals


def load_program(argument: str) -> Function[Any]:
    """The @function that ``file.py:name`` names. Raises InvalidRequest that lists the functions of the file."""
    from ramet.extraction.schema import load_module
    from ramet.frontend_lang import Function

    path, colon, name = argument.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise InvalidRequest(f"{argument!r} names no program: give file.py:function", param="program")
    module = load_module(Path(path))
    found = getattr(module, name, None)
    if isinstance(found, Function):
        return found
    names = [key for key, value in vars(module).items() if isinstance(value, Function)]
    raise InvalidRequest(
        f"{path} has no @function named {name!r}; it has {', '.join(names) or 'none'}", param="program"
    )


def read_arguments(path: Path, names: list[str]) -> Iterator[tuple[str | int, dict[str, Any] | InvalidRequest]]:
    """(id, arguments) of each line, or (number, what is wrong with it). Raises InvalidRequest for a first line that is
    no JSON object: then it is rather the command that is wrong."""
    if not path.is_file():
        raise InvalidRequest(f"{path} is not there", param="input")
    with path.open("rb") as lines:
        place = 0
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            given = _arguments(line, f"{path}, line {number}")
            if isinstance(given, InvalidRequest):
                if place == 0:
                    raise given
                yield place, given
            else:
                yield (given.pop("id", place) if "id" not in names else place), given
            place += 1


def _arguments(line: bytes, place: str) -> dict[str, Any] | InvalidRequest:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        return InvalidRequest(f"{place} is not JSON ({error})", param="input")
    if isinstance(given, dict):
        return given
    return InvalidRequest(
        f"{place} is a {type(given).__name__}: each must be one JSON object of arguments", param="input"
    )


def as_record(id: str | int, state: State[Any]) -> tuple[Record, Usage]:
    """What a finished state gives, and its usage."""
    from ramet.extraction.records import Record, RecordUsage
    from ramet.frontend_lang.explain import Explanation

    error = state.error()
    # Not state.explain(), which raises where the body did.
    run = state._core.run
    usage = Explanation(run.program, list(run.calls)).total
    counted = RecordUsage(usage.prompt, usage.completion, usage.forced, usage.sampled)
    if error is not None:
        status = "too_long" if getattr(error, "code", "") == "context_length_exceeded" else "error"
        said = _said(error)
        return Record(id, status, error=said, usage=counted), usage  # type: ignore[arg-type]
    try:
        value = _plain(state)
    except (TypeError, ValueError) as refusal:
        return Record(id, "error", error=f"the value cannot be written as JSON: {refusal}", usage=counted), usage
    return Record(id, "ok", value, usage=counted), usage


def _said(error: BaseException) -> str:
    """The message; of an error of the program's own code (not one of ramet's), also its type and line."""
    from ramet.runtime.protocol.errors import RametError

    if isinstance(error, RametError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}{_place(error)}"


def _place(error: BaseException) -> str:
    """The line of the program that raised it."""
    lines = traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if Path(line.filename).parent.name != "frontend_lang"]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _plain(state: State[Any]) -> object:
    """As JSON values: pydantic models, dataclasses and the like are turned into mappings."""
    from pydantic_core import to_jsonable_python

    value: object = state.ret_value
    if value is None:
        value = {name: state.parsed(name) for name in state._core.declared if isinstance(name, str)}
    plain: object = to_jsonable_python(value)
    json.dumps(plain, allow_nan=False)
    return plain


def _engine(options: SessionOptions) -> Any:
    from ramet.engine import Engine

    settings = {
        name: getattr(config, name)
        for config in (options.scheduler, options.worker)
        for name in config.__struct_fields__
        if name != "switches"
    }
    return Engine(options.model, **settings)
