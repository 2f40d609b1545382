"""Programs of every kind that people run, four ways on the real model: here or at a server, live or compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import program_ways
import pytest
from catalog import CASES, Case
from dsl_server import served
from ramet.runtime import store

import ramet as rt


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[rt.Engine]:
    with rt.Engine(store.open(model_dir), kv_tokens=32768, context=2048, progress=False) as running:
        yield running


@pytest.fixture(scope="module")
def endpoint(engine: rt.Engine) -> Iterator[rt.RuntimeEndpoint]:
    with served(engine) as url, rt.RuntimeEndpoint(url) as connected:
        yield connected


def test_the_catalog_covers_the_workloads() -> None:
    assert {case.row for case in CASES} == {str(row) for row in range(1, 18)}
    assert len(CASES) >= 25 and sum(not case.live for case in CASES) >= 18


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_gives_the_same_four_ways(engine: rt.Engine, endpoint: rt.RuntimeEndpoint, case: Case) -> None:
    live = program_ways.ids(program_ways.run(case, engine))
    assert program_ways.ids(program_ways.run(case, endpoint)) == live
    for backend in (engine, endpoint):
        if not case.live:
            assert program_ways.ids(program_ways.run(case, backend, compile=True)) == live
            continue
        with pytest.raises(rt.TraceError) as caught:
            program_ways.run(case, backend, compile=True)
        code = case.program.body.__code__
        assert case.live in str(caught.value) and caught.value.where.file == code.co_filename
        assert caught.value.where.line in {line for _, _, line in code.co_lines()}
