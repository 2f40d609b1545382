"""Every Python block of the page on the HTTP API runs against a live server, in order."""

from __future__ import annotations

import re
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
        exec(compile(block.replace("http://127.0.0.1:8000", live.url), str(PAGE), "exec"), names)
    assert "temperature invalid_value" in capsys.readouterr().out


def test_every_endpoint_of_the_page_is_there(live: Live) -> None:
    named = set(re.findall(r"`(?:GET |POST )?(/[a-z_/1]+)`", PAGE.read_text(encoding="utf-8")))
    paths = set(live.web.get("/openapi.json").json()["paths"])
    assert named - paths <= {"/dashboard", "/docs"}
    assert len(named) > 10
