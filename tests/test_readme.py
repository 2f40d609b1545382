"""Every block of the README and of the guides to extraction and models runs as it stands."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"bash", "python", "text", "json"}
SECONDS = 600


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(path: Path) -> list[Block]:
    return [Block(*found.groups()) for found in FENCE.finditer(path.read_text(encoding="utf-8"))]


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "docs" / "extraction.md", ROOT / "docs" / "models.md"]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_block_says_its_language_and_every_link_leads_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(blocks(path))
    assert {block.language for block in blocks(path)} <= LANGUAGES
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert target.startswith("https://") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_python_blocks_compile(path: Path) -> None:
    for block in blocks(path):
        if block.language == "python":
            compile(block.text, str(path), "exec")


class Shell:
    """Runs blocks in one folder, with ``ramet`` and ``python`` of this environment; servers end with it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.servers: list[subprocess.Popen[bytes]] = []
        programs = folder / "bin"
        programs.mkdir()
        command = programs / "ramet"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ramet "$@"\n')
        command.chmod(0o755)
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run(self, block: Block) -> str:
        if block.language == "python":
            return self._run([sys.executable, "-c", self._local(block.text)])
        return "".join(self._line(line) for line in block.text.splitlines())

    def _line(self, line: str) -> str:
        if line.startswith("make "):  # what it prepares is there already; the rest in short
            line = "ramet demo --limit 3"
        elif line.startswith("source "):
            return ""
        elif line.startswith("pip install "):  # no network: what it would install is there
            return self._run([sys.executable, "-c", f"import {', '.join(line.split()[2:])}"])
        if line.endswith("&"):
            return self._serve(line.removesuffix("&").split())
        return self._run(["bash", "-ec", line])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _local(self, text: str) -> str:
        return text.replace(":8000", f":{self.port}")

    def _serve(self, command: list[str]) -> str:
        self.servers.append(
            subprocess.Popen([*command, "--port", str(self.port)], cwd=self.folder, env=self.environment)
        )
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=5):
                    return ""
            except OSError:
                time.sleep(0.5)
        raise AssertionError("the server was not ready after 120 s")

    def end(self) -> None:
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        for server in self.servers:
            assert server.wait(30) in (0, -signal.SIGTERM)


@pytest.fixture
def shell(tmp_path: Path, model_dir: Path) -> Iterator[Shell]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = Shell(tmp_path, port)
    yield running
    running.end()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_the_blocks_run_in_their_order(path: Path, shell: Shell) -> None:
    printed = ""
    for block in blocks(path):
        if block.language in ("bash", "python"):
            printed = shell.run(block)
        elif block.language == "text" and "records=" in block.text:
            names = re.findall(r"(\w+)=", block.text.splitlines()[-1])
            assert re.findall(r"(\w+)=", printed.splitlines()[-1]) == names
    assert shutil.which("ramet", path=str(shell.folder / "bin"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [
        "invoice.py",
        "extract_packages.py 2",
        "agents_shared_prompt.py",
        "tree_of_thought.py",
        "openai_client.py",
    ],
)
def test_the_examples_run(name: str, shell: Shell) -> None:
    if name == "openai_client.py":
        shell.run(Block("bash", "ramet serve &"))
        name += f" http://127.0.0.1:{shell.port}/v1"
    assert shell.run(Block("bash", f"python {ROOT / 'examples'}/{name}"))
