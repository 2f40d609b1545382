"""The command line itself: quick to answer, lazy in what it imports, clear in what it refuses."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ramet.runtime.protocol.errors import InvalidRequest

from ramet.cli import COMMANDS, main
from ramet.cli.plan import branches, bytes_per_token
from ramet.cli.serve import _listen

HEAVY = ("torch", "transformers", "triton", "llguidance", "fastapi", "numpy", "pydantic", "tokenizers")


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys; from ramet.cli import main; main([]); print([m for m in {HEAVY!r} if m in sys.modules])"
    started = time.monotonic()
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert time.monotonic() - started < 5
    assert printed.splitlines()[-1] == "[]"
    assert all(name in printed for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert importlib.import_module(f"ramet.cli.{command}").__doc__
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"ramet {command}" in capsys.readouterr().out


def test_an_unknown_command_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["extrct"])
    assert end.value.code == 2
    assert "extrct" in capsys.readouterr().err


def test_abbreviated_options_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["extract", "--sch", "x"])


def test_a_taken_port_is_named_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=rf"port {port} .*--port"):
            _listen("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 70000])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidRequest, match="--port"):
        _listen("127.0.0.1", port)


def test_doctor_names_each_lack_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["can_run"] == (status == 0)
    names = {finding["name"] for finding in report["findings"]}
    assert {"python", "cpu", "cores", "memory", "kernels", "torch", "gpu", "sockets", "model", "port"} <= names
    for finding in report["findings"]:
        assert finding["state"] == "ok" or finding["advice"], finding


def test_plan_counts_bytes_of_the_default_model() -> None:
    assert bytes_per_token(layers=30, kv_heads=3, head_dim=64, kv_dtype="bf16") == 23040
    assert bytes_per_token(layers=30, kv_heads=3, head_dim=64, kv_dtype="int8") == 30 * 3 * 2 * (64 + 4)


@pytest.mark.parametrize(
    ("pool", "tokens", "shared", "expected"),
    [(1600, 160, 0, 10), (1600, 161, 0, 9), (1600, 160, 80, 19), (1600, 160, 95, 19), (64, 160, 0, 0)],
)
def test_plan_shares_whole_blocks_only(pool: int, tokens: int, shared: int, expected: int) -> None:
    assert branches(pool, tokens, shared, block=16) == expected


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("models.py:Missing", "'Missing'"),
        ("models.py", "models.py:Model"),
        ("nothing.json", "file.py:Model"),
        ("broken.json", "JSON"),
    ],
)
def test_a_schema_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.py").write_text("")
    (tmp_path / "broken.json").write_text("{")
    assert main(["schema", str(tmp_path / name)]) == 1
    said = capsys.readouterr().err
    assert name.partition(":")[0] in said and advice in said


def test_doctor_does_not_offer_to_pull_a_model_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json", "--model", "no-such-model"])
    [model] = [found for found in json.loads(capsys.readouterr().out)["findings"] if found["name"] == "model"]
    assert model["state"] == "note" and "pull" not in model["advice"]
