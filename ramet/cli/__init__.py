"""The ``ramet`` command: one small module per subcommand, imported only when that subcommand is used."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

COMMANDS: dict[str, str] = {
    "demo": "extract records from the packages installed here, with a real model",
    "extract": "documents in, one JSON record per document out",
    "run": "run a @function of a program over many arguments",
    "serve": "start the server (OpenAI API, programs, metrics)",
    "pull": "fetch a model into the local store",
    "doctor": "what this machine has and lacks, and which setting to change",
    "plan": "KV memory and concurrency of a model on this machine",
    "schema": "which keywords of a JSON Schema are enforced, and what it costs",
    "simulate": "replay a trace through the scheduler in virtual time",
    "bench": "measure servers with six workloads, beside what this machine can do",
    "top": "watch a running server",
    "tree": "draw the prefix tree of a running server",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit status: 0 done, 1 failed (the reason is printed), 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        return _overview(words)
    module = importlib.import_module(f"ramet.cli.{words[0]}")
    parser = argparse.ArgumentParser(
        prog=f"ramet {words[0]}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    arguments = parser.parse_args(words[1:])
    return _guarded(lambda: int(module.run(arguments)))


def _guarded(action: Callable[[], int]) -> int:
    from ramet.runtime.protocol.errors import RametError

    try:
        return action()
    except RametError as error:
        print(f"ramet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ramet: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (``ramet ... | head``): nothing is left to say to it.
        sys.stderr.close()
        return 1


def _overview(words: list[str]) -> int:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {purpose}" for name, purpose in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="ramet",
        usage="ramet COMMAND [options]",
        description="Structured generation for language-model programs.",
        epilog=f"commands:\n{listing}\n\n'ramet COMMAND --help' explains one of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    if not words:
        parser.print_help()
        return 0
    if not words[0].startswith("-"):
        parser.error(f"unknown command {words[0]!r}; the commands are {', '.join(COMMANDS)}")
    arguments = parser.parse_args(words)
    if arguments.version:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"ramet {version('ramet')}")
        except PackageNotFoundError:
            print("ramet (not installed)")
    return 0
