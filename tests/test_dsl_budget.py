"""Graphs that quote their values into each other: an error in words, not all of the machine's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ramet.frontend_lang.budget import Budget
from ramet.frontend_lang.graph import Block, Graph, Ref, ScopeOp, SetOp, TextOp
from ramet.runtime.protocol.errors import InvalidRequest
from test_http_shapes import http, run

from ramet import program_runs
from ramet.programs import add_program_routes


def scopes(levels: int) -> list[Any]:
    """v0 is ten letters, and each further one the one before ten times."""
    ops: list[Any] = [ScopeOp(0, "v0", True, 0), TextOp(0, ("0123456789",)), ScopeOp(0, "v0", False)]
    for k in range(1, levels + 1):
        quotes = tuple(Ref(slot=k - 1) for _ in range(10))
        ops += [ScopeOp(0, f"v{k}", True, k), TextOp(0, quotes), ScopeOp(0, f"v{k}", False)]
    return ops


def texts(levels: int) -> list[Any]:
    """A variable that is set to one text many times, as one text."""
    return [*scopes(2), SetOp(0, "all", {"text": [{"slot": 2, "type": "Ref"}] * levels * 2})]


def lists(levels: int) -> list[Any]:
    return [*scopes(2), SetOp(0, "all", {"list": [{"typed": {"slot": 2, "type": "Ref"}}] * levels * 8})]


def nested(levels: int) -> list[Any]:
    """Scopes in scopes, all around one text."""
    begins = [ScopeOp(0, f"v{k}", True, k) for k in range(100 * levels)]
    ends = [ScopeOp(0, f"v{k}", False) for k in reversed(range(100 * levels))]
    return [*begins, TextOp(0, ("x" * 10_000,)), *ends]


def answer(tmp_path: Path, ops: list[Any], stream: bool) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []

    async def body() -> None:
        async with http(tmp_path) as world:
            add_program_routes(world.app)
            graph = msgspec.to_builtins(Graph("p", "p.py", (), Block(tuple(ops))))
            asked = {"graph": graph, "items": [{}], "stream": stream}
            reply = await world.web.post("/v1/programs", json=asked)
            assert reply.status_code == 200, reply.text
            assert len(reply.content) < 4 * program_runs.MAX_ANSWER
            lines.extend(json.loads(line) for line in reply.text.splitlines())

    run(body)
    return next(line for line in lines if "result" in line or "error" in line)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("grow", [scopes, texts, lists, nested])
def test_a_graph_that_multiplies_its_values_ends_in_words(
    grow: Any, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_runs, "MAX_TEXT", 50_000)
    monkeypatch.setattr(program_runs, "MAX_ANSWER", 200_000)
    assert "result" in answer(tmp_path, grow(0), stream)
    told = answer(tmp_path, grow(40), stream)
    assert "characters of text" in json.dumps(told["error"]), told


def test_a_budget_counts_what_an_answer_holds() -> None:
    shared: Any = ["x" * 100]
    for _ in range(60):
        shared = [shared, shared]
    for value in ("x" * 1001, ["x" * 500] * 3, {"x" * 600: "y" * 600}, shared):
        with pytest.raises(InvalidRequest, match="more than 1000 characters"):
            Budget(1000).spend_value(value)
    Budget(1000).spend_value({"a": ["b", "c"], "d": None})
