"""The command line itself: quick to answer, lazy in what it imports, clear in what it refuses."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from ramet.runtime.protocol.errors import InvalidRequest

from ramet.cli import COMMANDS, main
from ramet.cli.plan import branches, bytes_per_token
from ramet.cli.serve import _listen
from ramet.cli.top import bar
from ramet.cli.tree import draw

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


def test_the_tree_is_drawn_below_its_parents_the_most_used_first() -> None:
    nodes = [
        {"parent": -1, "blocks": 4, "hits": 9, "locked": 1, "text": "You are\n a"},
        {"parent": 0, "blocks": 1, "hits": 1, "locked": 0, "text": "cold"},
        {"parent": 0, "blocks": 2, "hits": 5, "locked": 0, "text": "warm"},
        {"parent": 2, "blocks": 1, "hits": 0, "locked": 0, "text": "leaf"},
    ]
    assert draw(nodes, depth=6, children=8) == [
        "└── 4 blocks, 9 hits, in use: 'You are a'",
        "    ├── 2 blocks, 5 hits: 'warm'",
        "    │   └── 1 blocks, 0 hits: 'leaf'",
        "    └── 1 blocks, 1 hits: 'cold'",
    ]
    assert draw(nodes, depth=1, children=8) == ["└── 4 blocks, 9 hits, in use: 'You are a'", "    └── 2 more"]
    assert draw(nodes, depth=6, children=1)[-1] == "    └── 1 more"


def test_the_bar_shows_every_state_that_there_is() -> None:
    blocks = {"total": 1000, "locked": 1, "private": 499, "evictable": 250, "free": 250}
    drawn = bar(blocks, width=20)
    assert len(drawn) == 20 and set(drawn) == set("#=-.")
    assert bar({"total": 0, "locked": 0, "private": 0, "evictable": 0, "free": 0}, width=4) == "...."


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main(["top", "--once", "--url", url]) == 1
    assert url in capsys.readouterr().err


@pytest.mark.slow
def test_a_running_server_is_watched_and_its_tree_drawn(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "ramet", "serve", "--port", str(port)])
    try:
        until = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{url}/ready", timeout=5)
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.5)
        body = json.dumps(
            {"prompt": "Once upon a time there was a king who " * 8, "max_tokens": 4, "model": "default"}
        ).encode()
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body, headers), timeout=60).read()
        assert main(["tree", "--url", url]) == 0
        assert "Once upon a time" in capsys.readouterr().out
        assert main(["top", "--once", "--url", url]) == 0
        assert "from the cache" in capsys.readouterr().out
    finally:
        server.terminate()
        assert server.wait(30) in (0, -15)


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_what_is_no_port_is_refused_with_what_is(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--port", port])
    assert f"{port} is no port: give 0 (any free one) to 65535" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_one_error_and_not_a_tour_of_the_library() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import ramet\nramet.Engine('no-such-model')"], capture_output=True, text=True
    )
    assert found.stderr.count("  File ") == 2, found.stderr
    assert "ModelNotFound: there is no model 'no-such-model'. Known are" in found.stderr.splitlines()[-1]
