"""Extract one record of each Python package that is installed here, with a real model and one schema for all.

The first record is shown as it streams. The last line sums up what was computed and what came from the cache.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ramet.cli.options import add_model_option, add_runtime_options, positive, session_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=positive, default=40, metavar="N", help="number of packages (40)")
    parser.add_argument("--export", default=None, metavar="FOLDER", help="only write its documents and schema")
    parser.add_argument(
        "--colour",
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="dim what the schema forced, bright what the model chose (auto: on a terminal)",
    )
    add_model_option(parser)
    add_runtime_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from ramet.demo.packages import installed
    from ramet.demo.run import demo, export

    if arguments.export is not None:
        packages = installed(arguments.limit)
        export(Path(arguments.export), packages)
        print(f"{len(packages)} documents, their schema and the prompt are in {arguments.export}")
        return 0
    colour = arguments.colour == "always" or (arguments.colour == "auto" and sys.stdout.isatty())
    return demo(session_options(arguments), limit=arguments.limit, colour=colour)
