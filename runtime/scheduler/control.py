"""Answers to Control: what the scheduler tells of itself, and the few things one may ask it to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from statistics import median

import msgspec
from msgspec import structs
from ramet.radix import EventLog
from ramet.radix.inspect import dump
from ramet.runtime.protocol.messages import Control

from .books import Books
from .stats import BlockStats, RequestStats, Standing
from .waste import waste

log = logging.getLogger(__name__)


def answer(books: Books, events: EventLog, msg: Control) -> bytes:
    """JSON of the reply; an operation that is not known gets an ``error`` that lists those that are, and one that fails
    an ``error`` that says how: who asks must not harm those whose requests run."""
    operations: dict[str, Callable[[], object]] = {
        "stats": lambda: stats(books),
        "flush": lambda: flush(books),
        "drain": lambda: drain(books),
        "tree": lambda: tree(books),
        "events": lambda: recent_events(events, msg.argument),
    }
    operation = operations.get(msg.op)
    if operation is None:
        return msgspec.json.encode({"error": f"unknown control {msg.op!r}; known: {', '.join(operations)}"})
    try:
        return msgspec.json.encode(operation())
    except Exception as error:  # a fault of ours: it is told and logged, and the scheduler goes on
        log.exception("control %s failed", msg.op)
        return msgspec.json.encode({"error": f"{msg.op} failed: {type(error).__name__}: {error}"})


def stats(books: Books) -> dict[str, object]:
    """All counters beside how things stand now."""
    return {**structs.asdict(books.counters), **structs.asdict(standing(books))}


def standing(books: Books) -> Standing:
    memory = books.memory
    blocks = BlockStats()
    if memory is not None:
        pool, cached = memory.pool, memory.tree
        blocks = BlockStats(
            pool.total, pool.free_count, pool.private_count, cached.evictable_count, cached.locked_count
        )
    times = books.step_times
    return Standing(
        blocks=blocks,
        block_size=memory.block_size if memory else 0,
        requests=RequestStats(
            len(books.running) + len(books.returning), books.queue.ready, books.queue.waiting, len(books.parked)
        ),
        waste=waste(books),
        evictions=memory.tree.evictions if memory else 0,
        draining=books.draining,
        step_seconds=median(t for t, _ in times) if times else 0.0,
        step_gap=median(g for _, g in times) if times else 0.0,
        context=books.config.context or (memory.tokens if memory else 0),
        ready=memory is not None,
    )


def flush(books: Books) -> dict[str, int]:
    """Empty the cache; blocks that somebody uses stay."""
    freed = books.memory.tree.flush() if books.memory is not None else 0
    return {"freed_blocks": freed}


def drain(books: Books) -> dict[str, int]:
    """Take no new requests from now on; those that are here go on to their end."""
    books.draining = True
    return {"running": len(books.running) + len(books.returning), "queued": len(books.queue)}


def tree(books: Books) -> dict[str, object]:
    return {"namespaces": dump(books.memory.tree) if books.memory is not None else []}


def recent_events(events: EventLog, argument: str) -> dict[str, object]:
    """``argument``: number of the first event wanted (empty: all that are held)."""
    if argument and not (argument.isascii() and argument.isdigit() and len(argument) <= 18):
        return {"error": f"events takes the number of the first event wanted, or nothing; got {argument[:40]!r}"}
    first, found = events.since(int(argument or 0))
    return {
        "first": first,
        "next": events.next_number,
        "events": [
            {
                "kind": event.kind,
                "namespace": event.namespace,
                "depth": event.depth,
                "blocks": event.blocks,
                "tokens": len(event.ids) // 4,
            }
            for event in found
        ],
    }
