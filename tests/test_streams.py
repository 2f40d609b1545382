"""Streams: every split of UTF-8 and of stop strings gives the same bytes; what was handed out is never cut."""

from __future__ import annotations

import itertools
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.runtime.frontend.choice import Choice, OffsetGap
from ramet.runtime.frontend.detokenizer import Detokenizer, spell
from ramet.runtime.frontend.holdback import Holdback, stops_of
from ramet.runtime.frontend.requests import Chunk
from ramet.runtime.protocol import messages as m
from ramet.runtime.protocol.ids import pack_ids

TEXTS = ["a歪b🙂c é", "日本語テキスト", "👨‍👩‍👧 family", "plain", "é" * 5]


@st.composite
def split(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(st.data(), st.binary(max_size=40) | st.sampled_from(TEXTS).map(str.encode))
def test_any_split_of_bytes_decodes_the_same(data: st.DataObject, raw: bytes) -> None:
    decoder = Detokenizer()
    pieces = [decoder.feed(piece) for piece in data.draw(split(raw))] + [decoder.finish()]
    assert "".join(pieces) == raw.decode("utf-8", "replace")


@given(st.data(), st.text(max_size=20))
def test_a_split_character_is_never_broken(data: st.DataObject, text: str) -> None:
    decoder = Detokenizer()
    for piece in data.draw(split(text.encode("utf-8", "surrogatepass"))):
        out = decoder.feed(piece)
        assert "\ufffd" not in out or "\ufffd" in text or any(0xD800 <= ord(c) < 0xE000 for c in text)


@given(
    st.data(), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3), st.text("abcd", max_size=30)
)
@settings(max_examples=300)
def test_holdback_releases_only_what_no_stop_can_cut(data: st.DataObject, stops: list[str], text: str) -> None:
    patterns, raw = [stop.encode() for stop in stops], text.encode()
    holdback, out = Holdback(stops_of(patterns)), b""
    starts = [raw.find(pattern) for pattern in patterns if pattern in raw]
    first_end = min((raw.find(pattern) + len(pattern) for pattern in patterns if pattern in raw), default=len(raw))
    seen = 0
    for piece in data.draw(split(raw)):
        out += holdback.feed(piece)
        seen += len(piece)
        if seen < first_end or not starts:
            # No whole stop yet: what is held is exactly the longest suffix that begins one.
            longest = max(n for p in patterns for n in range(len(p)) if n == 0 or raw[:seen].endswith(p[:n]))
            assert out == raw[: seen - longest]
        else:
            assert len(out) <= min(starts)
            break
    assert raw.startswith(out)


@given(
    st.data(),
    st.sampled_from(["ABCDEFGHIJKL", "歪DE🙂DEF", "DDEDEF", "xABCDEFGHIJ"]),
    st.sampled_from(["DEF", "DE", "🙂", "Z"]),
)
@settings(max_examples=300)
def test_streamed_text_equals_the_cut_text_for_every_tokenisation(data: st.DataObject, text: str, stop: str) -> None:
    """A worker that decides id by id, deltas of any number of ids: the joined chunks are the text before the stop."""
    raw, pattern = text.encode(), stop.encode()
    table = data.draw(split(raw))
    prompt = array("i", [0, 0])
    ids, hit = [], None
    for token in range(len(table)):
        ids.append(token)
        so_far = b"".join(table[: token + 1])
        found = so_far.find(pattern)
        if found >= 0:
            ends, at = 0, 0
            while ends + len(table[at]) <= found:
                ends, at = ends + len(table[at]), at + 1
            hit = m.StopHit(0, len(prompt) + at, table[at][: found - ends])
            break
    choice = Choice((1, 0), prompt, table, stops_of([pattern]), True)
    chunks: list[Chunk | None] = []
    cuts = sorted({*data.draw(st.lists(st.integers(0, len(ids)), max_size=5)), 0, len(ids)})
    for a, b in itertools.pairwise(cuts):
        logprobs = tuple(m.TokenLogprob(-float(token), 0.0) for token in ids[a:b])
        chunks.append(choice.delta(m.TokenDelta(1, 0, 2 + a, pack_ids(ids[a:b]), bytes(b - a), logprobs, 0)))
    chunks.append(choice.finished(m.Finished(1, 0, "stop" if hit else "length", m.Usage(), hit)))
    want = text[: text.index(stop)] if stop in text else text
    got = [chunk for chunk in chunks if chunk is not None]
    assert "".join(chunk.text for chunk in got) == want == choice.result().text
    assert [token for chunk in got for token in chunk.ids] == ids
    assert [entry.raw for chunk in got for entry in chunk.logprobs or []] == [-float(token) for token in ids]
    handed = ""
    for chunk in got[:-1]:
        handed += chunk.text
        # Ids travel with the text they spell, so none of a stop's is seen before the end.
        assert (
            len(spell(table, [t for c in got[: got.index(chunk) + 1] for t in c.ids])) <= len(want.encode()) or not hit
        )
    assert want.startswith(handed)


def test_ids_sent_again_are_dropped_and_missing_ones_are_noticed() -> None:
    choice = Choice((1, 0), array("i", [9]), [b"a", b"b", b"c"], [], False)
    first = choice.delta(m.TokenDelta(1, 0, 1, pack_ids([0, 1]), b"\0\0", None, 4))
    again = choice.delta(m.TokenDelta(1, 0, 1, pack_ids([0, 1]), b"\0\0", None, 9))
    more = choice.delta(m.TokenDelta(1, 0, 2, pack_ids([1, 2]), b"\0\1", None, 9))
    assert first is not None and first.text == "ab"
    assert again is None
    assert more is not None and (more.text, more.ids, more.forced, more.offset) == ("c", [2], b"\1", 3)
    assert choice.cached == 4
    usage = choice.usage_so_far()
    assert usage == m.Usage(prompt=1, cached=4, computed=-3, completion=3, forced=1, sampled=2)
    with pytest.raises(OffsetGap):
        choice.delta(m.TokenDelta(1, 0, 9, pack_ids([0]), b"\0", None, 4))


def test_ids_outside_the_table_have_no_text() -> None:
    choice = Choice((1, 0), array("i", [0]), [b"a"], [], False)
    chunk = choice.delta(m.TokenDelta(1, 0, 1, pack_ids([7, 0]), b"\0\0", None, 0))
    assert chunk is not None and chunk.text == "a"


def test_incomplete_bytes_at_the_end_become_one_replacement() -> None:
    choice = Choice((1, 0), array("i", [0]), [b"\xe6", b"\xad", b"x"], [], False)
    assert choice.delta(m.TokenDelta(1, 0, 1, pack_ids([0, 1]), b"\0\0", None, 0)).text == ""  # type: ignore[union-attr]
    assert choice.finished(m.Finished(1, 0, "length", m.Usage())).text == "\ufffd"
