"""The KV oracle itself: it must see what it is there to see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ramet.kernels.ops import Batch, GroupSpec
from ramet.runtime.worker.oracle import OracleMismatch, OracleRunner, PrefixHash


def batch(rows: list[tuple[list[int], int, list[int]]], groups: tuple[GroupSpec, ...] = ()) -> Batch:
    """Rows of (new ids, first position, block table); logits of each row's last id."""
    starts = np.cumsum([0, *(len(ids) for ids, _, _ in rows)]).astype(np.int32)
    width = max(len(table) for _, _, table in rows)
    return Batch(
        ids=np.concatenate([np.array(ids, np.int32) for ids, _, _ in rows]),
        positions=np.concatenate([np.arange(at, at + len(ids), dtype=np.int32) for ids, at, _ in rows]),
        row_start=starts,
        context=np.array([at + len(ids) for ids, at, _ in rows], np.int32),
        block_tables=np.array([table + [0] * (width - len(table)) for _, _, table in rows], np.int32),
        logit_rows=starts[1:] - 1,
        groups=groups,
    )


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def test_logits_depend_on_the_prefix_alone() -> None:
    runner = OracleRunner(8, 4, 50)
    whole = runner.forward(batch([([1, 2, 3, 4, 5, 6], 0, [0, 1])])).copy()
    runner.forward(batch([([1, 2, 3], 0, [5, 6])]))
    parts = runner.forward(batch([([4, 5, 6], 3, [5, 6]), ([9], 0, [7])]))
    assert (parts[0] == whole[0]).all()
    assert (parts[1] != whole[0]).any()
    assert whole[0].argmax() != runner.end_ids[0]


def test_a_hash_of_a_prefix_is_its_own() -> None:
    hasher = PrefixHash()
    sequences = [[], [0], [0, 0], [1], [0, 1], [1, 0], [1, 0, 0], list(range(300)), list(range(299))]
    assert len({hasher.after(ids) for ids in sequences}) == len(sequences)


@pytest.mark.parametrize(
    ("table", "what"),
    [([1, 0], "another order"), ([0, 2], "never written"), ([0, 3], "another sequence's block")],
)
def test_a_table_that_does_not_spell_its_row_is_seen(table: list[int], what: str) -> None:
    runner = OracleRunner(8, 4, 50)
    runner.forward(batch([([1, 2, 3, 4, 5, 6, 7, 8], 0, [0, 1]), ([9, 2, 3, 4, 5, 6, 7, 8], 0, [4, 3])]))
    with pytest.raises(OracleMismatch):
        runner.forward(batch([([9], 8, [*table, 6])]))


def test_a_reused_block_is_seen() -> None:
    runner = OracleRunner(4, 4, 50)
    runner.forward(batch([([1, 2, 3, 4, 5], 0, [0, 1])]))
    runner.forward(batch([([7], 0, [1])]))
    with pytest.raises(OracleMismatch, match="position 4 in block 1"):
        runner.forward(batch([([6], 5, [0, 1])]))


def test_two_rows_may_not_write_one_slot() -> None:
    runner = OracleRunner(4, 4, 50)
    with pytest.raises(OracleMismatch, match="same slot"):
        runner.forward(batch([([1], 0, [2]), ([1], 0, [2])]))


def test_a_copy_carries_what_it_says_and_no_more() -> None:
    runner = OracleRunner(4, 4, 50)
    runner.forward(batch([([1, 2, 3, 4], 0, [0])]))
    runner.copy_blocks(ints(0), ints(2), ints(2))
    whole = OracleRunner(4, 4, 50).forward(batch([([1, 2, 9], 0, [0])]))
    assert (runner.forward(batch([([9], 2, [2])]))[0] == whole[0]).all()
    runner.copy_blocks(ints(0), ints(3), ints(2))
    with pytest.raises(OracleMismatch):
        runner.forward(batch([([4], 3, [3])]))


def test_a_group_must_share_what_it_says() -> None:
    runner = OracleRunner(8, 64, 50)
    runner.forward(batch([(list(range(40)) + list(range(24)), 0, [0])]))
    good = GroupSpec(ints(0, 1), 0, 64)
    runner.forward(batch([([1], 64, [0, 1]), ([2], 64, [0, 2])], (good,)))
    with pytest.raises(OracleMismatch, match="do not share"):
        runner.forward(batch([([1], 0, [3]), ([2], 0, [4])], (good,)))
