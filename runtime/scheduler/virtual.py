"""A worker in virtual time: it computes nothing, knows what each row will say, and checks every block it reads.

For each KV block it remembers which prefix the block continues and which ids it holds, so that a row whose table does
not spell its sequence fails at once, as on the KV oracle, at a cost per block instead of per token.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from ramet.runtime.protocol.messages import (
    Drop,
    PlanRow,
    RowEnd,
    RowResult,
    RowStart,
    StepPlan,
    StepResult,
    TokenLogprob,
    ToWorker,
)

from .branch import ID_BYTES

SCORED_KEY = (1 << 64) - 1
"""Sampling key of a request that only scores."""
_ID = struct.Struct("<i")
_LENGTH = RowEnd("length")


class BlockMismatch(AssertionError):
    """A row would have read KV that is not its own."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of a step: ``step_s`` + tokens x ``token_s`` + rows x ``row_s``.

    The defaults are about those of a model of 135M parameters on two CPU cores.
    """

    step_s: float = 0.004
    token_s: float = 1 / 2500
    row_s: float = 0.0005

    def of(self, tokens: int, rows: int) -> float:
        return self.step_s + tokens * self.token_s + rows * self.row_s


@dataclass(slots=True)
class _Row:
    ids: bytearray
    n_prompt: int
    computed: int
    table: list[int]
    stop: int
    """Length at which it ends."""
    base: int
    """First token id of what it generates; -1: it only scores."""
    logits_from: int
    written: int = 0
    """Blocks whose content is noted."""
    prints: list[int] = field(default_factory=list)


class VirtualWorker:
    """``outputs``: for a prompt's key (its Sampling.key) the first token id of what it generates."""

    def __init__(self, block_size: int, speed: Speed, *, verify: bool = True) -> None:
        self._size = block_size
        self._bytes = block_size * ID_BYTES
        self._speed = speed
        self._verify = verify
        self._rows: dict[int, _Row] = {}
        self._content: dict[int, tuple[int, bytes]] = {}
        """(fingerprint of the prefix in front, ids) of each block."""
        self.computed = 0

    def take(self, messages: Sequence[ToWorker]) -> None:
        """Row starts and drops, in order."""
        for message in messages:
            if isinstance(message, RowStart):
                self._rows[message.row] = _Row(
                    bytearray(message.ids),
                    message.n_prompt,
                    message.computed,
                    list(message.blocks),
                    message.n_prompt + message.limits.max_tokens,
                    _first_id(message.sampling.key),
                    message.logits_from,
                )
            elif isinstance(message, Drop):
                self._rows.pop(message.row, None)

    def step(self, plan: StepPlan) -> StepResult:
        tokens = 0
        if self._verify:
            for copy in plan.copies:
                before, ids = self._content[copy.source]
                self._content[copy.target] = (before, ids[: copy.tokens * ID_BYTES])
        results: list[RowResult] = []
        for planned in plan.rows:
            row = self._rows.get(planned.row)
            if row is not None:
                result, count = self._advance(planned, row)
                tokens += count
                results.append(result)
        self.computed += tokens
        return StepResult(plan.step, tuple(results), seconds=self._speed.of(tokens, len(results)))

    def _advance(self, planned: PlanRow, row: _Row) -> tuple[RowResult, int]:
        row.table += planned.blocks
        for index, block in planned.replaced:
            row.table[index] = block
        if not row.prints and self._verify:
            self._check_start(row)
        known = len(row.ids) // ID_BYTES
        start = row.computed
        row.computed = min(start + planned.ceiling, known)
        if row.computed > len(row.table) * self._size:
            raise BlockMismatch(f"{row.computed} ids do not fit {len(row.table)} blocks")
        if self._verify:
            self._note(row)
        new, end, scores = b"", None, None
        if row.computed == known:
            if known < row.stop:
                new = _ID.pack(row.base + known - row.n_prompt)
                row.ids += new
                known += 1
            if known >= row.stop:
                end = _LENGTH
                del self._rows[planned.row]
        if 0 <= row.logits_from < row.n_prompt - 1 and row.base < 0:
            first = max(row.logits_from, start)
            count = min(row.computed, row.n_prompt - 1) - first
            if count > 0:
                scores = (first + 1, (_SCORE,) * count)
        return RowResult(planned.row, row.computed, new, bytes(len(new) // ID_BYTES), None, scores, end), (
            row.computed - start
        )

    # ------------------------------------------------------------ what stands in the blocks

    def _fingerprint(self, row: _Row, upto: int) -> None:
        """Fingerprints of the prefixes before each block, up to block ``upto``."""
        prints, size, ids = row.prints, self._bytes, row.ids
        if not prints:
            prints.append(0)
        while len(prints) <= upto:
            at = (len(prints) - 1) * size
            prints.append(hash((prints[-1], bytes(ids[at : at + size]))))

    def _check_start(self, row: _Row) -> None:
        """What the row was told is computed must stand in its blocks."""
        whole, rest = divmod(row.computed, self._size)
        self._fingerprint(row, whole)
        size = self._bytes
        for index in range(whole + (1 if rest else 0)):
            wanted = size if index < whole else rest * ID_BYTES
            before, ids = self._content.get(row.table[index], (-1, b""))
            if before != row.prints[index] or ids[:wanted] != row.ids[index * size : index * size + wanted]:
                raise BlockMismatch(f"block {row.table[index]} does not hold what its row reads at block {index}")
        row.written = whole

    def _note(self, row: _Row) -> None:
        last = -(-row.computed // self._size)
        self._fingerprint(row, last - 1)
        size = self._bytes
        for index in range(row.written, last):
            stop = min((index + 1) * size, row.computed * ID_BYTES)
            self._content[row.table[index]] = (row.prints[index], bytes(row.ids[index * size : stop]))
        row.written = row.computed // self._size


def _first_id(key: int) -> int:
    """Keys of further choices are hashes: they are folded above the ids of names."""
    if key == SCORED_KEY:
        return -1
    return key if key < 1 << 30 else key & ((1 << 30) - 1) | 1 << 30


_SCORE = TokenLogprob(0.0, 0.0)
