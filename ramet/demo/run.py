"""The demo from start to end: the first record alone and live, then the rest together."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ramet.demo.packages import MIN_DESCRIPTION, Package, installed, normalised
from ramet.demo.record import DOCUMENT_TOKENS, INSTRUCTION, MAX_TOKENS, PackageRecord
from ramet.demo.show import LiveText, table
from ramet.extraction.extractor import Extractor, Options, Outcome
from ramet.extraction.optimum import optimum
from ramet.extraction.prompt import frame
from ramet.extraction.records import Totals
from ramet.extraction.schema import Target, target
from ramet.extraction.sources import Document
from ramet.extraction.window import in_order
from ramet.session import BackgroundSession, SessionOptions

USUAL = 40
"""Packages that the demo takes, where so many are installed."""

WINDOW = 64
"""Documents under way at once."""


@dataclass(frozen=True)
class Agreement:
    """Of how many records name and version are those of the package's own metadata."""

    names: int
    versions: int


def agreement(packages: Sequence[Package], outcomes: Sequence[Outcome]) -> Agreement:
    names = versions = 0
    for package, outcome in zip(packages, outcomes, strict=True):
        value = outcome.record.value
        if isinstance(value, dict):
            names += normalised(str(value.get("name"))) == normalised(package.name)
            versions += value.get("version") == package.version
    return Agreement(names, versions)


def export(folder: Path, packages: Sequence[Package]) -> None:
    """Write what the demo works on as files that ``ramet extract`` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "packages.jsonl").open("w", encoding="utf-8") as lines:
        for package in packages:
            lines.write(json.dumps({"id": package.name, "text": package.document.text}, ensure_ascii=False) + "\n")
    (folder / "schema.json").write_text(json.dumps(PackageRecord.model_json_schema(), indent=2) + "\n")
    (folder / "prompt.txt").write_text(INSTRUCTION.system + "\n", encoding="utf-8")


def demo(options: SessionOptions, *, limit: int = USUAL, colour: bool = False, out: TextIO = sys.stdout) -> int:
    """Print the whole demo to ``out``, the closing line last; 0 if every record is valid."""
    packages = installed(limit)
    goal = target(PackageRecord)
    _print_task(packages, limit, goal, out)
    started = time.monotonic()
    with BackgroundSession(options) as background:
        session = background.session
        around = frame(INSTRUCTION, session.template, session.tokenizer)
        settings = Options(max_tokens=MAX_TOKENS, document_tokens=DOCUMENT_TOKENS)
        extractor = Extractor(session.client, session.tokenizer, around, goal, session.context, settings)
        print(f"{session.folder.meta.name} is ready after {time.monotonic() - started:.1f} s.\n", file=out)
        legend = " (dim: forced by the schema; bright: chosen by the model)" if colour else ""
        print(f"The first record, as it comes{legend}:", file=out, flush=True)
        started = time.monotonic()
        live = LiveText(session.tokenizer, out, colour=colour)
        first = background.submit(extractor.extract(packages[0].document, live)).result()
        print("\n", file=out, flush=True)
        rest = in_order(
            [package.document for package in packages[1:]],
            lambda document: background.submit(extractor.extract(document)),
            WINDOW,
        )
        outcomes = [first, *(outcome for _, outcome in _with_bar(rest, len(packages)))]
        seconds = time.monotonic() - started
    totals = Totals()
    for outcome in outcomes:
        totals.add(outcome.record, outcome.usage)
    print(table(("name", "version", "license", "category", "purpose"), list(map(_row, outcomes))), file=out)
    agreed = agreement(packages, outcomes)
    _print_figures(totals, outcomes, agreed, len(around.prefix), out)
    print(totals.closing_line(seconds, names=agreed.names), file=out, flush=True)
    return 0 if totals.valid == totals.records else 1


def _print_task(packages: Sequence[Package], limit: int, goal: Target, out: TextIO) -> None:
    print(f"One record of each of {len(packages)} installed packages, with one schema for all:\n", file=out)
    print(f"{goal.text}\n", file=out)
    print(f"The documents are the packages' own metadata and descriptions, cut at {DOCUMENT_TOKENS} tokens.", file=out)
    short = sum(not package.has_description for package in packages)
    if short:
        print(
            f"Descriptions of fewer than {MIN_DESCRIPTION} characters, for which the summary stands in: {short}.",
            file=out,
        )
    if len(packages) < limit:
        print(f"Only {len(packages)} packages are installed here; {limit} were asked for.", file=out)
    print(file=out, flush=True)


def _with_bar(outcomes: Iterator[tuple[Document, Outcome]], total: int) -> Iterator[tuple[Document, Outcome]]:
    from tqdm import tqdm

    yield from tqdm(outcomes, total=total, initial=1, unit="record", leave=False, disable=None)


def _row(outcome: Outcome) -> list[str]:
    value = outcome.record.value
    if not isinstance(value, dict):
        return [str(outcome.record.id), "", "", outcome.record.status, outcome.record.error or ""]
    return [str(value[name]) for name in ("name", "version", "license", "category", "purpose")]


def _print_figures(
    totals: Totals, outcomes: Sequence[Outcome], agreed: Agreement, prefix_tokens: int, out: TextIO
) -> None:
    best, prompt = optimum((outcome.prompt, outcome.answer) for outcome in outcomes)
    count = totals.records
    print(
        f"\nnames that agree with the metadata: {agreed.names} of {count}; versions: {agreed.versions} of {count}\n"
        f"prompt tokens from the cache: {totals.cached_share:.1%}; the most that any cache could give: "
        f"{best / max(prompt, 1):.1%}\n\n"
        f"The instruction of {prefix_tokens} tokens was computed once and reused by the {count - 1} other documents, "
        f"and {totals.forced} of the {totals.forced + totals.sampled} generated tokens followed from the schema alone "
        "and were never sampled.\n"
        "A model of 135 million parameters shows structure and speed, not judgement: take --model for quality.\n\n"
        "Three commands to go on with:",
        file=out,
    )
    command = _command()
    print(f"  {command} demo --export packages", file=out)
    print(
        f"  {command} extract --schema packages/schema.json --prompt @packages/prompt.txt "
        f"--input packages/packages.jsonl --output packages/records.jsonl "
        f"--document-tokens {DOCUMENT_TOKENS} --limit 10",
        file=out,
    )
    print(f"  {command} serve\n", file=out)


def _command() -> str:
    """``ramet`` as it has to be typed here: with its path, where the shell would not find it."""
    script = Path(sys.argv[0])
    if script.name != "ramet":
        return f"{sys.executable} -m ramet"
    found = shutil.which("ramet")
    return "ramet" if found is not None and Path(found).resolve() == script.resolve() else str(script)
