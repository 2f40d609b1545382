"""Traces in virtual time: what is read, what is measured, what it is measured against."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ramet.runtime.protocol.config import SchedulerConfig, Switches
from ramet.runtime.scheduler.optimum import clairvoyant, distinct_blocks, distinct_tokens, structural
from ramet.runtime.scheduler.simulate import Options, Report, SimulationStuck, simulate
from ramet.runtime.scheduler.trace import BadTrace, TraceRequest, load, save
from ramet.runtime.scheduler.virtual import BlockMismatch, VirtualWorker

from ramet.cli import main

ROOT = Path(__file__).parents[1]
MOONCAKE = ROOT.parent / "shared" / "bench" / "traces" / "mooncake_synthetic.jsonl"


@pytest.fixture(scope="module")
def programs() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import programs

    yield programs
    sys.path.remove(str(ROOT / "benchmarks"))


def replay(requests: list[TraceRequest], pool: int = 1 << 20, *, rows: int = 16, **changes: Any) -> Report:
    concurrency = changes.pop("concurrency", 0)
    config = SchedulerConfig(max_rows=rows, **({"plan_depth": 1} | changes))
    return simulate(requests, Options(pool, config, concurrency=concurrency))


@pytest.mark.parametrize(
    "name", ["mmlu_5shot", "hellaswag_select", "llm_judge", "json_by_field", "self_consistency", "debate"]
)
@pytest.mark.parametrize("depth", [1, 2])
def test_calls_offered_at_once_share_what_an_unbounded_cache_shares_one_by_one(
    programs: Any, name: str, depth: int
) -> None:
    requests = programs.requests_of(getattr(programs, name))
    best = structural(requests)
    assert abs(replay(requests, block_size=1, plan_depth=depth).hit_rate - best) < 0.02
    assert replay(requests, block_size=16, plan_depth=depth).hit_rate > structural(requests, 16) - 0.02


def test_each_part_that_is_turned_off_costs_something(programs: Any) -> None:
    requests = programs.requests_of(programs.tree_of_thought)
    pool = max(distinct_tokens(requests) // 2, 2048)
    all_on = replay(requests, pool).hit_rate
    for switches in (
        Switches(order="fcfs"),
        Switches(order="random"),
        Switches(pending=False),
        Switches(tree=False),
        Switches(force_miss=True),
    ):
        assert replay(requests, pool, switches=switches).hit_rate < all_on
    assert all_on >= 0.96 * structural(requests)


def test_a_cache_that_knows_the_future_is_never_worse_and_never_better_than_one_without_bounds() -> None:
    requests = [TraceRequest(((f"document {i * i % 17}", 64), (f"question {i}", 16)), 1) for i in range(200)]
    unbounded = structural(requests, 16)
    for blocks in (10, 20, 40, 80):
        best = clairvoyant(requests, blocks, 16)
        found = replay(requests, blocks * 16, concurrency=1, chunk_tokens=4096).block_hit_rate
        assert found <= best + 1e-9 <= unbounded + 2e-9
    assert clairvoyant(requests, 1 << 20, 16) == pytest.approx(unbounded)


def test_a_trace_survives_saving(tmp_path: Path) -> None:
    requests = [
        TraceRequest((("a", 10), ("b", 5)), 3, at=1.5, tenant="t", priority=2),
        TraceRequest((("a", 10), ("out 0", 3)), 0, after=(0,), score=True),
        TraceRequest((("a", 1),), 2, n=4, keep=True),
    ]
    save(tmp_path / "trace.jsonl", requests)
    assert load(tmp_path / "trace.jsonl") == requests


def test_mooncake_lines_are_read(tmp_path: Path) -> None:
    line = {"timestamp": 2500, "input_length": 1300, "output_length": 7, "hash_ids": [4, 5, 9]}
    (tmp_path / "trace.jsonl").write_text(json.dumps(line) + "\n")
    (request,) = load(tmp_path / "trace.jsonl")
    assert request.tokens == 1300 and request.output == 7 and request.at == 2.5
    assert [count for _, count in request.prompt] == [512, 512, 276]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"prompt": [], "output": 1}',
        '{"prompt": [["a", 0]]}',
        '{"output": 4}',
        '{"input_length": 600, "output_length": 1, "hash_ids": [1]}',
        '{"prompt": [["a", 3]], "after": [5]}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt": [["a", 3]]}\n' + line + "\n")
    with pytest.raises(BadTrace, match="line 2"):
        load(path)


def test_the_command_prints_one_object_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    save(path, [TraceRequest((("a", 64), (f"q {i}", 16)), 4) for i in range(8)])
    assert main(["simulate", str(path), "--capacity", "0.9,4096", "--policy", "lru,slru", "--bounds", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["policy"] for row in result["rows"]] == ["lru", "slru"] * 2
    assert result["rows"][-1]["hit_rate"] == pytest.approx(7 * 64 / (8 * 80))
    assert main(["simulate", str(path), "--capacity", "-3"]) == 1
    assert "shares (0 to 1) or tokens" in capsys.readouterr().err
    assert main(["simulate", str(tmp_path / "none.jsonl")]) == 1


def test_a_request_that_can_never_fit_is_refused_and_the_rest_goes_on() -> None:
    requests = [TraceRequest((("big", 5000),), 1), TraceRequest((("small", 50),), 1)]
    report = replay(requests, 1024)
    assert report.refused == 1 and report.requests == 2


def test_the_virtual_worker_sees_a_wrong_block(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [TraceRequest((("a", 64), (f"q {i}", 16)), 4) for i in range(4)]
    monkeypatch.setattr(VirtualWorker, "_note", lambda self, row: None)
    with pytest.raises(BlockMismatch):
        replay(requests)


def test_a_stuck_replay_says_so() -> None:
    """The second request waits for itself."""
    requests = [TraceRequest((("a", 10),), 1), TraceRequest((("b", 10),), 1, after=(1,))]
    with pytest.raises(SimulationStuck, match="1 requests are left"):
        replay(requests)


@pytest.mark.slow
@pytest.mark.skipif(not MOONCAKE.is_file(), reason="no public trace beside this checkout")
def test_the_public_trace_meets_its_bounds() -> None:
    requests = load(MOONCAKE, max_output=1)
    distinct = distinct_blocks(requests, 512)

    def found(share: float, policy: str) -> float:
        pool = int(distinct * share) * 512
        return replay(requests, pool, block_size=512, chunk_tokens=1 << 20, policy=policy, concurrency=1).block_hit_rate

    assert found(1.3, "lru") == pytest.approx(0.638, abs=0.001)
    for share, plain in ((0.05, 0.155), (0.1, 0.260), (0.25, 0.443), (0.5, 0.589)):
        assert found(share, "lru") >= plain
    assert found(0.1, "slru") >= 0.260 + 0.015
