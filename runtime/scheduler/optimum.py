"""What a cache could give at best: bounds that a replay is compared with.

* ``structural``: an unbounded cache that serves the requests in their order; the last token of each prompt is computed.
* ``clairvoyant``: a bounded cache of whole blocks that knows the future and evicts what is used last again (leaves
  first, as every prefix cache must).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ramet.radix import BlockPool, Namespace, RadixTree

from .trace import TraceRequest, Vocabulary


def vocabulary_for(requests: Sequence[TraceRequest]) -> Vocabulary:
    longest = max((count for r in requests for _, count in r.prompt), default=1)
    longest = max(longest, *(r.output for r in requests), 1)
    return Vocabulary(1 << (longest - 1).bit_length())


def structural(requests: Sequence[TraceRequest], block_size: int = 1) -> float:
    """Share of prompt tokens that are found. Whole blocks only, and all of a generation but its last token is kept."""
    vocabulary = vocabulary_for(requests)
    total = sum((r.tokens + r.output) * r.n for r in requests)
    tree = RadixTree(BlockPool(max(total // block_size + 1, 1)), block_size)
    prompt = found = 0
    for index, request in enumerate(requests):
        namespace = Namespace(request.tenant)
        ids = vocabulary.ids(request.prompt)
        full = ids + vocabulary.ids([(f"out {index}", request.output - 1)] if request.output > 1 else [])
        for _ in range(request.n):
            match = tree.match(namespace, ids, request.tokens - 1)
            prompt += request.tokens
            found += match.tokens
            match = tree.match(namespace, full)
            rest = full[match.tokens * 4 :]
            whole = len(rest) // 4 // block_size
            done = tree.commit(tree.acquire(match), rest[: whole * block_size * 4], tree.pool.allocate(whole))
            tree.release(done.lease)
    return found / max(prompt, 1)


def distinct_tokens(requests: Sequence[TraceRequest]) -> int:
    """Tokens that an unbounded cache would hold in the end: the working set."""
    seen: set[tuple[int, str, int]] = set()
    paths: dict[tuple[int, str, int], int] = {}
    total = 0
    for index, request in enumerate(requests):
        path = 0
        for name, count in (*request.prompt, (f"out {index}", request.output)):
            step = (path, name, count)
            if step not in seen:
                seen.add(step)
                total += count
            path = paths.setdefault(step, len(paths) + 1)
    return total


def distinct_blocks(requests: Sequence[TraceRequest], block_size: int) -> int:
    """Different blocks of the prompts, a partial last one included."""
    vocabulary = vocabulary_for(requests)
    span = block_size * 4
    numbers: dict[tuple[int, bytes], int] = {}
    for request in requests:
        ids = vocabulary.ids(request.prompt)
        before = 0
        for at in range(0, len(ids), span):
            before = numbers.setdefault((before, ids[at : at + span]), len(numbers) + 1)
    return len(numbers)


def clairvoyant(requests: Sequence[TraceRequest], capacity_blocks: int, block_size: int) -> float:
    """Share of prompt blocks (a partial last one counts) that a cache of ``capacity_blocks`` finds if it knows what
    comes. Prompts only: generated tokens are not cached."""
    vocabulary = vocabulary_for(requests)
    keys: list[list[int]] = []
    numbers: dict[tuple[int, bytes], int] = {}
    parents: list[int] = []
    uses: list[list[int]] = []
    span = block_size * 4
    blocks = 0
    for index, request in enumerate(requests):
        ids = vocabulary.ids(request.prompt)
        blocks += -(-request.tokens // block_size)
        path: list[int] = []
        before = -1
        for at in range(0, len(ids) // span * span, span):
            key = (before, ids[at : at + span])
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(parents)
                parents.append(before)
                uses.append([])
            uses[number].append(index)
            path.append(number)
            before = number
        keys.append(path)
    return _belady(requests, keys, parents, uses, capacity_blocks, block_size) / max(blocks, 1)


def _belady(
    requests: Sequence[TraceRequest],
    keys: list[list[int]],
    parents: list[int],
    uses: list[list[int]],
    capacity: int,
    block_size: int,
) -> int:
    """Blocks found. A block that is used later than all that are cached is not kept at all."""
    never = len(requests) + 1
    cached = bytearray(len(parents))
    children = [0] * len(parents)
    cursor = [0] * len(parents)
    heap: list[tuple[int, int]] = []
    size = found = 0

    def next_use(block: int) -> int:
        return uses[block][cursor[block]] if cursor[block] < len(uses[block]) else never

    for index, path in enumerate(keys):
        hit = 0
        while hit < len(path) and cached[path[hit]]:
            hit += 1
        found += min(hit, (requests[index].tokens - 1) // block_size)
        for block in path:
            cursor[block] += 1
        for block in path[hit:]:
            cached[block] = 1
            size += 1
            if parents[block] >= 0:
                children[parents[block]] += 1
        if path:
            heapq.heappush(heap, (-next_use(path[-1]), path[-1]))
        while size > capacity and heap:
            due, block = heapq.heappop(heap)
            if not cached[block] or children[block] or -due != next_use(block):
                if cached[block] and not children[block]:
                    heapq.heappush(heap, (-next_use(block), block))
                continue
            cached[block] = 0
            size -= 1
            parent = parents[block]
            if parent >= 0:
                children[parent] -= 1
                if not children[parent]:
                    heapq.heappush(heap, (-next_use(parent), parent))
    return found
