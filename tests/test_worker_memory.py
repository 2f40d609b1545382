"""The size of the KV pool."""

from __future__ import annotations

from ramet.runtime.worker.memory import DEFAULT_TOKENS, available_bytes, pool_blocks


def test_what_is_asked_for_is_given_in_whole_blocks() -> None:
    assert pool_blocks(300, 16, 1000, available=0) == 19
    assert pool_blocks(256, 16, 1000, available=0) == 16


def test_by_default_two_fifths_of_the_memory_or_the_default() -> None:
    assert pool_blocks(0, 16, 1000, available=16_000 * 100) == 40
    assert pool_blocks(0, 16, 1000, available=1 << 50) * 16 == DEFAULT_TOKENS
    assert pool_blocks(0, 16, 1000, available=10) == 1


def test_this_machine_has_memory() -> None:
    assert 1 << 20 < available_bytes() < 1 << 50
