"""What goes first when blocks are wanted: policies, quotas, soft retention."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ramet.radix import BlockPool, Namespace, RadixTree
from ramet.radix.check import check_tree

NS = Namespace()


def pack(ids: list[int]) -> bytes:
    return np.asarray(ids, "<i4").tobytes()


def make(blocks: int = 64, **options: object) -> RadixTree:
    return RadixTree(BlockPool(blocks), 1, **options)  # type: ignore[arg-type]


def use(tree: RadixTree, ids: list[int], namespace: Namespace = NS, **leaving: object) -> int:
    """One request: match, store what is new, leave. How many ids were found."""
    match = tree.match(namespace, pack(ids))
    lease = tree.acquire(match)
    rest = ids[match.tokens :]
    tree.evict(len(rest) - tree.pool.free_count)
    done = tree.commit(lease, pack(rest), tree.pool.allocate(len(rest)))
    tree.pool.free(done.replaced)
    tree.release(done.lease, **leaving)  # type: ignore[arg-type]
    check_tree(tree)
    return match.tokens


def cached(tree: RadixTree, ids: list[int], namespace: Namespace = NS) -> int:
    return tree.match(namespace, pack(ids)).tokens


def test_lfu_spares_what_is_used_often() -> None:
    tree = make(policy="lfu")
    for _ in range(3):
        use(tree, [1, 2])
    use(tree, [3, 4])
    tree.evict(2)
    assert (cached(tree, [1, 2]), cached(tree, [3, 4])) == (2, 0)


def test_priority_spares_what_the_important_used() -> None:
    tree = make(policy="priority")
    use(tree, [1, 2], priority=5)
    use(tree, [1, 2, 9], priority=1)
    use(tree, [3, 4])
    tree.evict(3)
    assert (cached(tree, [3, 4]), cached(tree, [1, 2, 9])) == (0, 2)


def test_slru_spares_what_was_used_again_from_a_scan() -> None:
    tree, plain = make(64, policy="slru"), make(64, policy="lru")
    hot = list(range(1000, 1020))
    for one in (tree, plain):
        use(one, hot)
        use(one, hot)
        for i in range(20):
            use(one, [i * 10 + k for k in range(10)])
    assert cached(tree, hot) == 20
    assert cached(plain, hot) == 0


def test_slru_remembers_what_it_evicted_not_long_ago() -> None:
    tree = make(64, policy="slru")
    back = [7, 8, 9]
    use(tree, back)
    tree.evict(3)
    assert use(tree, back) == 0
    for i in range(12):
        use(tree, [100 + i * 10 + k for k in range(10)])
    assert cached(tree, back) == 3, "a newcomer that was here before is protected at once"


def test_a_quota_bounds_what_a_tenant_keeps_and_nobody_else() -> None:
    small, other = Namespace("small"), Namespace("other")
    tree = make(64, quotas={"small": 8})
    use(tree, list(range(100, 120)), other)
    for i in range(6):
        use(tree, [i * 10 + k for k in range(4)], small)
    kept = sum(cached(tree, [i * 10 + k for k in range(4)], small) for i in range(6))
    assert kept == 8
    assert cached(tree, list(range(100, 120)), other) == 20
    assert cached(tree, [50, 51, 52, 53], small) == 4, "the latest stay"


def test_a_tenant_with_salts_has_one_quota() -> None:
    tree = make(64, quotas={"small": 8})
    for i in range(6):
        use(tree, [1, 2, 3, 4], Namespace("small", f"salt {i}"))
    assert tree.stored_count == 8


def test_what_is_retained_goes_last_and_only_for_its_time() -> None:
    tree = make(16)
    tree.advance(100.0)
    use(tree, [1, 2], retain_until=400.0)
    use(tree, [3, 4])
    use(tree, [5, 6])
    tree.evict(2)
    assert cached(tree, [1, 2]) == 2 and cached(tree, [3, 4]) == 0
    tree.advance(399.0)
    tree.evict(2)
    assert cached(tree, [1, 2]) == 2 and cached(tree, [5, 6]) == 0
    use(tree, [7, 8])
    tree.advance(400.0)
    assert tree.retained_count == 0
    tree.evict(2)
    assert cached(tree, [1, 2]) == 0 and cached(tree, [7, 8]) == 2


def test_retention_is_soft() -> None:
    tree = make(16)
    use(tree, [1, 2, 3], retain_until=400.0)
    assert tree.evict(2) == 2, "when nothing else is left, it goes too"


def test_retention_has_a_cap() -> None:
    tree = make(16, retained_share=0.25)
    use(tree, [1, 2, 3], retain_until=400.0)
    use(tree, [1, 2, 7], retain_until=500.0)
    assert tree.retained_count == 4, "a prefix is retained once"
    use(tree, [4, 5, 6], retain_until=400.0)
    assert tree.retained_count == 4
    tree = make(16, retained_share=0.25)
    use(tree, list(range(7)), retain_until=400.0)
    tree.evict(5)
    assert cached(tree, list(range(7))) == 2 and tree.retained_count == 2, "from the root as far as it reaches"


def test_a_spent_branch_goes_first() -> None:
    tree = make(16)
    use(tree, [1, 2])
    use(tree, [3, 4], spent=True)
    use(tree, [1, 2], spent=True)
    tree.evict(2)
    assert cached(tree, [1, 2]) == 2 and cached(tree, [3, 4]) == 0


@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "priority"])
def test_random_use_with_quotas_and_retention_keeps_the_books(policy: str) -> None:
    dice = random.Random(3)
    tree = make(40, policy=policy, quotas={"a": 6, "b": 12})
    for step in range(800):
        tree.advance(step)
        ids = [dice.randrange(3) for _ in range(dice.randrange(1, 12))]
        namespace = Namespace(dice.choice(["a", "b", "c"]))
        use(
            tree,
            ids,
            namespace,
            priority=dice.randrange(3),
            retain_until=step + dice.choice([0, 0, 5, 50]),
            spent=dice.random() < 0.2,
        )
        if dice.random() < 0.2:
            tree.evict(dice.randrange(10))
        check_tree(tree)
    tree.flush()
    assert tree.pool.free_count == 40 and tree.retained_count == 0
