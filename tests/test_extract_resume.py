"""A job that is killed goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).parent / "extract_child.py"


def start(output: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(output)], env=environment, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_kills_leave_no_trace(tmp_path: Path, model_dir: Path) -> None:
    undisturbed = tmp_path / "undisturbed.jsonl"
    child = start(undisturbed)
    child.communicate(timeout=400)
    assert child.returncode == 0
    killed = tmp_path / "killed.jsonl"
    for records in (40, 110, 75):
        child = start(killed)
        assert child.stdout is not None
        for _ in range(records):
            assert child.stdout.readline()
        child.kill()
        child.wait()
    sizes = killed.stat().st_size
    child = start(killed)
    rest, _ = child.communicate(timeout=400)
    assert child.returncode == 0
    assert 0 < sizes < undisturbed.stat().st_size
    assert len(rest.splitlines()) <= 500 - 225
    assert killed.read_bytes() == undisturbed.read_bytes()
    assert [json.loads(line)["id"] for line in killed.open()] == [f"d{number}" for number in range(500)]
    assert {json.loads(line)["status"] for line in killed.open()} == {"ok"}
