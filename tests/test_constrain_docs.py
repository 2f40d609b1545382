"""The code of docs/constraints.md runs, and its tables are about this code."""

from __future__ import annotations

import re
from pathlib import Path

from ramet.runtime.constrain.kinds import KINDS
from ramet.runtime.constrain.schema.formats import ENFORCED

PAGE = (Path(__file__).parents[1] / "docs" / "constraints.md").read_text(encoding="utf-8")


def test_python_blocks_run(model_dir):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/constraints.md", "exec"), {"__name__": "docs"})


def test_every_kind_and_format_is_named():
    for name in (*KINDS, *ENFORCED):
        assert f"`{name}`" in PAGE, name
