"""What goes beyond the usual surface: explain, score, top, tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ramet.frontend_lang.fake import FakeBackend

import ramet as rt


@pytest.fixture
def fake() -> Iterator[FakeBackend]:
    backend = FakeBackend()
    yield backend
    backend.close()


# ---------------------------------------------------------------- explain


def test_explain_lists_every_call_of_every_branch(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "root" + rt.gen("a", max_tokens=3)
        forks = s.fork(2)
        forks += rt.gen("b", max_tokens=2)
        forks.join()
        s += rt.select("c", ["x", "y"])

    report = program.run(backend=fake).explain()
    assert sorted((call.kind, call.name, len(call.path)) for call in report.calls) == [
        ("gen", "a", 0),
        ("gen", "b", 2),
        ("gen", "b", 2),
        ("select", "c", 0),
    ]
    assert report.total.sampled == 7 and report.calls[0].diverged == "root"
    assert report.calls[0].where.file == __file__
    table = str(report)
    assert "gen b [1]" in table and "4 calls" in table and "total" in table


# ---------------------------------------------------------------- score, top


def test_score_appends_nothing_and_gives_probabilities(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> tuple[list[float], list[list[float]], str]:
        s += "q" + rt.gen("a", max_tokens=3)
        forks = s.fork(3)
        forks += lambda i: f"{i}"
        alone = rt.score(s, after="? ", choices=["yes", "no"])
        rows = rt.score(forks, after="? ", choices=["yes", "no"])
        return alone, rows, s.text()

    state = program.run(backend=fake)
    alone, rows, text = state.result()
    assert text == state.text() and len(rows) == 3
    for row in [alone, *rows]:
        assert sum(row) == pytest.approx(1.0) and all(0 < p < 1 for p in row)
    assert len({tuple(row) for row in rows}) == 3
    with pytest.raises(ValueError, match="choices"):
        rt.score(state, choices=["a", "a"])


def test_top_keeps_the_best_and_lets_the_others_go(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> int:
        s += "q"
        forks = s.fork(4)
        forks += lambda i: f"{i}" + rt.gen("v", max_tokens=2)
        best = rt.top(forks, [0.1, 0.9, 0.5, 0.9], 2)
        assert best == [forks[1], forks[3]]
        for f in forks:
            f.sync()
        assert forks[0]["v"], "losers can still be read"
        return len(fake.kept)

    assert program.run(backend=fake).result() == 2


def test_score_in_async_programs(fake: FakeBackend) -> None:
    @rt.function
    async def program(s: rt.AsyncState) -> list[float]:
        s += "q"
        forks = s.fork(2)
        rows = await rt.score(forks, choices=["a", "b"])
        assert len(rows) == 2
        return await rt.score(s, choices=["a", "b"])

    assert len(program.run(backend=fake).result()) == 2


def test_an_error_of_a_state_is_raised_by_score(fake: FakeBackend) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += rt.gen("a")
        rt.score(s, choices=["a", "b"])

    with pytest.raises(rt.ProgramError, match="append some text"):
        program.run(backend=fake)
