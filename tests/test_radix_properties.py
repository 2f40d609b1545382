"""The prefix tree against a model of it that is too simple to be wrong: dictionaries of prefixes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ramet.radix import BlockError, BlockPool, EventLog, LeaseError, Namespace, OutOfBlocks, RadixTree
from ramet.radix.check import check_tree

NS = Namespace("a")


def pack(ids: list[int]) -> bytes:
    return np.asarray(ids, "<i4").tobytes()


def store(tree: RadixTree, ids: list[int], namespace: Namespace = NS) -> list[int]:
    """Commit all whole blocks of ``ids`` as a finished row would; the blocks that hold them."""
    size = tree.block_size
    match = tree.match(namespace, pack(ids))
    lease = tree.acquire(match)
    count = len(ids) // size - len(match.blocks)
    tree.evict(count - tree.pool.free_count)
    own = tree.pool.allocate(count)
    done = tree.commit(lease, pack(ids[match.tokens : match.tokens + count * size]), own)
    tree.pool.free(done.replaced)
    tree.release(done.lease)
    check_tree(tree)
    return [*match.blocks, *done.blocks]


def make(blocks: int = 64, size: int = 4, **options: object) -> RadixTree:
    return RadixTree(BlockPool(blocks), size, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 2, 4, 16, 256])
def test_a_stored_prefix_is_found_in_whole_blocks_with_its_tail(size: int) -> None:
    tree = make(size=size)
    ids = list(range(1, 5 * size + 1))
    blocks = store(tree, ids)
    for length in range(len(ids) + 1):
        match = tree.match(NS, pack([*ids[:length], 9999]))
        assert match.blocks == tuple(blocks[: length // size])
        assert match.tokens == length // size * size
        rest = length - match.tokens
        assert (match.tail.tokens if match.tail else 0) == rest
        if match.tail:
            assert match.tail.block == blocks[length // size]


def test_a_limit_caps_blocks_and_tail_together() -> None:
    tree = make(size=4)
    ids = list(range(8))
    blocks = store(tree, ids)
    match = tree.match(NS, pack(ids), limit=7)
    assert match.blocks == tuple(blocks[:1])
    assert match.tail is not None and (match.tail.block, match.tail.tokens) == (blocks[1], 3)


def test_the_tail_is_the_cached_block_that_agrees_longest() -> None:
    tree = make(blocks=512, size=8)
    rng = random.Random(1)
    stored = []
    for _ in range(40):
        ids = [rng.randrange(3) for _ in range(8)]
        stored.append(ids)
        store(tree, ids)
    for _ in range(200):
        want = [rng.randrange(3) for _ in range(8)]
        want[rng.randrange(8)] = 7
        agree = max(next(i for i in range(9) if i == 8 or s[i] != want[i]) for s in stored)
        match = tree.match(NS, pack(want))
        assert (match.tail.tokens if match.tail else 0) == agree


def test_namespaces_never_see_each_other() -> None:
    tree = make()
    ids = list(range(12))
    store(tree, ids, Namespace("a", "s"))
    for other in (
        Namespace("a"),
        Namespace("as"),
        Namespace("", "as"),
        Namespace("a", "s", "x"),
        Namespace("a", "s", "", "f"),
    ):
        match = tree.match(other, pack(ids))
        assert match.tokens == 0 and match.tail is None and match.pending is None
    assert tree.match(Namespace("a", "s"), pack(ids)).tokens == 12


def test_a_duplicate_is_replaced_before_it_is_freed() -> None:
    tree = make()
    ids = list(range(12))
    lease_a, lease_b = tree.acquire_root(NS), tree.acquire_root(NS)
    own_a, own_b = tree.pool.allocate(3), tree.pool.allocate(3)
    first = tree.commit(lease_a, pack(ids), own_a)
    second = tree.commit(lease_b, pack(ids), own_b)
    assert first.replaced == () and second.replaced == tuple(own_b) and second.blocks == tuple(own_a)
    assert tree.pool.private_count == 3, "the duplicates are still the caller's"
    tree.pool.free(second.replaced)
    tree.release(first.lease)
    assert tree.evict(12) == 0, "the second lease holds the path it was moved to"
    tree.release(second.lease)
    check_tree(tree)
    assert tree.flush() == 3


def test_leases_lock_what_they_cover_and_are_released_once() -> None:
    tree = make()
    ids = list(range(16))
    store(tree, ids)
    lease = tree.acquire(tree.match(NS, pack(ids[:8])))
    assert (tree.locked_count, tree.evictable_count) == (2, 2), "a partial match locks what it matched, no more"
    assert tree.evict(16) == 2
    tree.release(lease)
    with pytest.raises(LeaseError):
        tree.release(lease)
    check_tree(tree)


def test_a_lease_of_an_older_generation_is_void() -> None:
    tree = make()
    lease = tree.acquire_root(NS)
    tree.reset(BlockPool(8))
    tree.release(lease)
    tree.release(lease)
    with pytest.raises(LeaseError):
        tree.commit(lease, b"", [])
    check_tree(tree)


def test_the_least_recently_used_leaf_goes_first_and_from_its_end() -> None:
    tree = make(size=1)
    store(tree, [1, 2, 3])
    store(tree, [1, 2, 4, 5])
    tree.release(tree.acquire(tree.match(NS, pack([1, 2, 3]))))
    assert tree.evict(1) == 1
    assert tree.match(NS, pack([1, 2, 4, 5])).tokens == 3
    tree.evict(1)
    assert tree.match(NS, pack([1, 2, 3])).tokens == 3
    check_tree(tree)


def test_a_parent_is_as_recent_as_the_children_it_lost() -> None:
    tree = make(size=1)
    store(tree, [1, 2, 3])
    store(tree, [7, 8])
    store(tree, [1, 2, 4])
    tree.evict(1)  # [3], the oldest leaf
    tree.evict(2)  # [7, 8] is older than the node [1, 2], which was used through [4]
    assert tree.match(NS, pack([1, 2, 4])).tokens == 3
    assert tree.match(NS, pack([7, 8])).tokens == 0


def test_the_pool_refuses_what_its_states_forbid() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    with pytest.raises(OutOfBlocks, match="2 blocks asked for, 1 of 4 are free"):
        pool.allocate(2)
    pool.free(blocks[:1])
    with pytest.raises(BlockError):
        pool.free(blocks[:1])
    pool.adopt(blocks[1:2])
    for wrong in (pool.free, pool.adopt):
        with pytest.raises(BlockError):
            wrong(blocks[1:2])


def test_small_blocks_stand_side_by_side_while_there_is_room() -> None:
    pool = BlockPool(16, 4)
    a = pool.allocate(3)
    b = pool.allocate(6)
    assert a == [0, 1, 2] and b == [4, 5, 6, 7, 8, 9]
    a += pool.allocate(2, 3, a[-1])
    assert a == [0, 1, 2, 3, 12], "the rest of its own group, then a whole one"
    fork = pool.allocate(1, 2, b[1])
    assert fork[0] not in (*a, *b), "no whole group is left: what others have begun is shared"
    assert sorted(pool.allocate(pool.free_count, 7)) == sorted(set(range(16)) - {*a, *b, *fork})
    pool.free([4, 5, 6])
    assert pool.allocate(1) != [4], "that group is not whole: its 7 is in use"
    pool.check()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.sampled_from([1, 2, 4, 16]), st.data())
def test_no_free_block_is_lost(total: int, group: int, data: st.DataObject) -> None:
    pool = BlockPool(total, group)
    tables: list[list[int]] = []
    for _ in range(data.draw(st.integers(0, 60))):
        if tables and data.draw(st.booleans()):
            table = tables.pop(data.draw(st.integers(0, len(tables) - 1)))
            pool.free(table)
        elif pool.free_count:
            table = data.draw(st.sampled_from(tables)) if tables and data.draw(st.booleans()) else []
            count = data.draw(st.integers(1, pool.free_count))
            own = pool.allocate(count, len(table), table[-1] if table else -1)
            assert len(set(own)) == count and not any(block in other for other in tables for block in own)
            if table:
                table += own
            else:
                tables.append(own)
        pool.check()
        assert pool.free_count == total - sum(map(len, tables))


@pytest.mark.parametrize("size", [0, 3, 12, -4])
def test_a_block_size_is_a_power_of_two(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        make(size=size)


def test_pending_work_is_found_follows_its_lease_and_ends() -> None:
    tree = make(size=4)
    ids = list(range(20))
    lease = tree.acquire_root(NS)
    tree.announce(lease, pack(ids), 20)
    other = pack([*range(10), 77, 78, 79])
    pending = tree.match(NS, other, 12).pending
    assert pending is not None and (pending.owner, pending.tokens) == (lease.serial, 12), (
        "up to the end of the block of divergence"
    )
    assert tree.match(Namespace("b"), other).pending is None
    lease = tree.commit(lease, pack(ids[:8]), tree.pool.allocate(2)).lease
    assert tree.match(NS, other, 12).pending is None, "two more tokens are not worth a wait"
    match = tree.match(NS, pack([*range(16), 5]))
    assert match.tokens == 8 and match.pending is not None and match.pending.tokens == 16
    tree.release(lease)
    assert tree.match(NS, pack(ids)).pending is None
    check_tree(tree)


def test_events_tell_the_same_story_as_the_tree() -> None:
    log = EventLog()
    tree = make(blocks=32, size=2, events=log)
    rng = random.Random(5)
    for _ in range(300):
        store(tree, [rng.randrange(2) for _ in range(rng.randrange(12))])
    held: dict[int, bytes] = {}
    for event in log.since(0)[1]:
        for i, block in enumerate(event.blocks):
            if event.kind == "stored":
                assert block not in held
                held[block] = event.ids[8 * i : 8 * i + 8]
            else:
                assert held.pop(block) == event.ids[8 * i : 8 * i + 8]
    assert len(held) == tree.stored_count


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "priority"])
def test_random_use_keeps_the_books_and_never_lies(size: int, policy: str) -> None:
    """Leases, commits, evictions and flushes at random; every match is spelled by the blocks it names."""
    rng = random.Random(size)
    tree = make(blocks=48, size=size, policy=policy)
    content: dict[int, tuple[int, ...]] = {}
    held: list[tuple[object, list[int], list[int]]] = []
    for _ in range(1500):
        action = rng.random()
        ids = [rng.randrange(2) for _ in range(rng.randrange(1, 10 * size))]
        if action < 0.5:
            match = tree.match(NS, pack(ids))
            for i, block in enumerate(match.blocks):
                assert content[block] == tuple(ids[: (i + 1) * size])
            if match.tail:
                assert content[match.tail.block][: match.tokens + match.tail.tokens] == tuple(
                    ids[: match.tokens + match.tail.tokens]
                )
            lease = tree.acquire(match)
            held.append((lease, ids, list(match.blocks)))
        elif action < 0.8 and held:
            lease, ids, table = held.pop(rng.randrange(len(held)))
            count = rng.randrange(len(ids) // size - len(table) + 1)
            tree.evict(count - tree.pool.free_count)
            if count <= tree.pool.free_count:
                own = tree.pool.allocate(count)
                start = len(table)
                for i, block in enumerate(own):
                    content[block] = tuple(ids[: (start + i + 1) * size])
                done = tree.commit(lease, pack(ids[start * size : (start + count) * size]), own)  # type: ignore[arg-type]
                tree.pool.free(done.replaced)
                lease, table = done.lease, table + list(done.blocks)
            held.append((lease, ids, table))
        elif action < 0.95 and held:
            tree.release(held.pop(rng.randrange(len(held)))[0])  # type: ignore[arg-type]
        elif action < 0.99:
            tree.evict(rng.randrange(6))
        else:
            tree.flush()
        check_tree(tree)
        pool = tree.pool
        assert pool.free_count + pool.private_count + tree.evictable_count + tree.locked_count == pool.total
    for lease, _, _ in held:
        tree.release(lease)  # type: ignore[arg-type]
    tree.flush()
    assert tree.pool.free_count == tree.pool.total
    check_tree(tree)
