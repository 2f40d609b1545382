"""Handles and results are typed, for mypy and pyright alike."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ramet as rt

SAMPLE = Path(__file__).with_name("dsl_types_sample.py")
PLACE = Path(rt.__file__).parents[1]


def expected() -> dict[int, str]:
    lines = enumerate(SAMPLE.read_text().splitlines(), 1)
    return {number: line.split("  # ")[1] for number, line in lines if line.strip().startswith("reveal_type(")}


def short(name: str) -> str:
    """``builtins.int`` and the like without their modules."""
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", name)


@pytest.mark.slow
def test_mypy_knows_the_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--follow-imports=silent", str(SAMPLE)]
    # An installed package is found by itself, and mypy refuses its place as a path.
    where = {} if PLACE.name == "site-packages" else {"MYPYPATH": str(PLACE)}
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=240)
    found = re.findall(r":(\d+): note: Revealed type is [\"'](.*)[\"']", done.stdout)
    assert "error" not in done.stdout, done.stdout
    assert {int(line): short(name) for line, name in found} == expected()


@pytest.mark.slow
def test_pyright_knows_the_types(tmp_path: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed (it needs node)")
    shutil.copy(SAMPLE, tmp_path)
    place = tmp_path / "pyrightconfig.json"
    place.write_text(json.dumps({"include": [SAMPLE.name], "extraPaths": [str(PLACE)]}))
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "-p", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    news = json.loads(done.stdout)["generalDiagnostics"]
    found: dict[int, str] = {}
    for entry in news:
        assert entry["severity"] != "error", entry
        match = re.search(r'Type of ".*" is "(.*)"', entry["message"])
        if match:
            found[entry["range"]["start"]["line"] + 1] = short(match[1])
    assert found == expected()
