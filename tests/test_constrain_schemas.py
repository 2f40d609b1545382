"""Schemas of the kinds that people send, written for this test: every valid instance is taken, no invalid one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.testing import accepts

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "constraint_schemas.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_valid_instances_are_taken_and_invalid_ones_are_not(case):
    for instances, wanted in ((case["valid"], True), (case["invalid"], False)):
        for instance in instances:
            text = json.dumps(instance, separators=(",", ":"), ensure_ascii=False)
            assert accepts(case["schema"], text) is wanted, text
