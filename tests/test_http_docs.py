"""Every Python block of the page on the HTTP API runs against a live server, in order."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from live import Live

PAGE = Path(__file__).parents[1] / "docs" / "http.md"


def test_blocks_of_the_page_run(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8000", live.url), str(PAGE), "exec", dont_inherit=True), names)
    assert "temperature invalid_value" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_command_of_the_page_answers_by_its_schema(live: Live) -> None:
    [block] = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    command = ["bash", "-ec", block.replace("http://127.0.0.1:8000", live.url)]
    reply = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert "error" not in reply, reply
    text = reply["choices"][0]["message"]["content"]
    if reply["choices"][0]["finish_reason"] == "stop":
        assert set(json.loads(text)) == {"name", "age"}
    else:
        assert text.startswith('{"name":"')


def test_every_endpoint_of_the_page_is_there(live: Live) -> None:
    named = set(re.findall(r"`(?:GET |POST )?(/[a-z_/1]+)`", PAGE.read_text(encoding="utf-8")))
    paths = set(live.web.get("/openapi.json").json()["paths"])
    assert named - paths <= {"/dashboard", "/docs"}
    assert len(named) > 10
