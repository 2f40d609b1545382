"""Every Python block of the pages on programs runs, in order, in one namespace per page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ramet.frontend_lang.backend import GenCall
from ramet.frontend_lang.fake import FakeBackend, words

import ramet as rt

DOCS = Path(__file__).parents[1] / "docs"


def script(prompt: str, call: GenCall) -> str:
    """Answers that fit what the page asks for."""
    if prompt.endswith("As JSON: "):
        return '{"name":"Ann","age":31}'
    if prompt.endswith("Age: "):
        return "31"
    if prompt.endswith("Year: "):
        return "1965"
    if prompt.endswith("<tool_call>\n"):
        return json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})
    if "<tool_call>" in call.stop:
        return "It is clear." if "<tool_response>" in prompt or "</tool_call>" in prompt else "<tool_call>"
    return words(prompt, call)


@pytest.fixture
def page() -> Iterator[FakeBackend]:
    backend = FakeBackend(script, context=20_000, default_system="Default.")
    rt.set_default_backend(backend)
    yield backend
    rt.set_default_backend(None)
    backend.close()


@pytest.mark.parametrize(("name", "least"), [("dsl.md", 15), ("from-sglang.md", 1)])
def test_every_block_of_the_page_runs(page: FakeBackend, name: str, least: int) -> None:
    text = (DOCS / name).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= least
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, f"docs/{name}", "exec"), namespace)
