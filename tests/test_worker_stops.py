"""Stop strings: what is found depends on the bytes alone, never on how they fall into ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ramet.runtime.worker.stops import StopScanner

alphabet = st.sampled_from([b"a", b"b", b"c"])
texts = st.lists(alphabet, max_size=14).map(b"".join)
stop_sets = st.lists(st.lists(alphabet, min_size=1, max_size=5).map(b"".join), min_size=1, max_size=3).map(tuple)


def expected(text: bytes, stops: tuple[bytes, ...]) -> tuple[int, int] | None:
    """(begin, which) by the stated rule, on the whole text: first end, then first begin, then first in the list."""
    hits = [
        (begin + len(stop), begin, which)
        for which, stop in enumerate(stops)
        for begin in range(len(text))
        if text[begin : begin + len(stop)] == stop
    ]
    return None if not hits else min(hits)[1:]


@given(texts, stop_sets, st.data())
def test_every_split_finds_the_same_stop(text: bytes, stops: tuple[bytes, ...], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    scanner = StopScanner(stops)
    hit, taken = None, 0
    for index, piece in enumerate(pieces):
        hit = scanner.push(100 + index, piece)
        taken += len(piece)
        if hit is not None:
            break
    want = expected(text, stops)
    if want is None:
        assert hit is None
        return
    begin, which = want
    # A piece may complete a second stop that ends later; the first end still wins.
    assert hit is not None
    assert hit.which == which
    assert b"".join(pieces[: hit.at - 100]) + hit.leftover == text[:begin]
    assert len(pieces[hit.at - 100]) > len(hit.leftover), "the named id holds the stop's first byte"
    assert taken >= begin + len(stops[which])


@given(texts, stop_sets)
def test_a_waived_hit_is_not_found_again(text: bytes, stops: tuple[bytes, ...]) -> None:
    scanner = StopScanner(stops)
    for end in range(1, len(text) + 1):
        hit = scanner.push(end - 1, text[end - 1 : end])
        ends_here = [s for s in stops if text[:end].endswith(s)]
        assert (hit is not None) == bool(ends_here)


def test_ids_without_bytes_change_nothing() -> None:
    scanner = StopScanner((b"ab",))
    assert scanner.push(0, b"xa") is None
    assert scanner.push(1, b"") is None
    hit = scanner.push(2, b"b")
    assert hit is not None and (hit.at, hit.leftover) == (0, b"x")


def test_the_window_stays_small() -> None:
    scanner = StopScanner((b"abc",))
    for index in range(10_000):
        assert scanner.push(index, b"ab") is None
    assert len(scanner._window) < 8
