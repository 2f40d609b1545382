"""The KV oracle: a runner that computes no model and sees every wrong block.

Each KV slot holds the id and the position that should stand there and a hash of the whole prefix up to it. A forward
pass first reads the block table of every row from position 0 on: the slots must spell one unbroken sequence. The
logits are a hash of the prefix, so a row that reads another row's sequence, whole and well-formed, says other ids
than it should. Use after free, double free, wrong reuse and leaks between namespaces fail at once, or in the next id.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ramet.kernels import sampling
from ramet.kernels.ops import Batch, SampleBatch, SampleResult
from ramet.runtime.protocol.config import RuntimeConfig

from .constraints import Compile

FINGERPRINT = "oracle"
_ODD = 0x9E3779B97F4A7C15
_SPREAD = 8.0
_NEVER = np.float32(-1e4)
_UNWRITTEN = -1
DEFAULT_TOKENS = 65_536

Hashes = NDArray[np.uint64]


class OracleMismatch(AssertionError):
    """A row would have read KV that is not its own: the message says which row, position and block."""


def mix(x: Hashes) -> Hashes:
    """SplitMix64's finaliser over an array."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = x ^ (x >> np.uint64(31))
    return mixed


class PrefixHash:
    """Hashes of all prefixes of a sequence in one pass: a polynomial over mixed ids, modulo 2^64."""

    def __init__(self) -> None:
        self._powers: Hashes = np.ones(1, np.uint64)

    def terms(self, ids: NDArray[np.int32], start: int) -> Hashes:
        """What each id at positions ``start``, ``start + 1``, ... adds."""
        stop = start + len(ids)
        while len(self._powers) < stop:
            self._powers = np.concatenate([self._powers, self._powers * self._power(len(self._powers))])
        terms: Hashes = mix(ids.astype(np.uint64) + np.uint64(_ODD)) * self._powers[start:stop]
        return terms

    def after(self, ids: Sequence[int]) -> int:
        """Hash of the whole of ``ids``."""
        return int(self.terms(np.asarray(ids, np.int32), 0).sum(dtype=np.uint64))

    @staticmethod
    def _power(exponent: int) -> Any:
        return np.uint64(pow(_ODD, exponent, 1 << 64))


def logits_of(prefix: Hashes, vocab_size: int, end_ids: Sequence[int]) -> NDArray[np.float32]:
    """[L, V] from the hashes of L prefixes: all but end ids are about equally likely to be the best."""
    columns = np.arange(vocab_size, dtype=np.uint64) * np.uint64(_ODD)
    bits = mix(mix(prefix)[:, None] + columns[None, :])
    logits: NDArray[np.float32] = (bits >> np.uint64(40)).astype(np.float32) * np.float32(_SPREAD / (1 << 24))
    logits[:, list(end_ids)] = _NEVER
    return logits


class OracleRunner:
    """A Runner. The last id is the end id, and is never the best. ``step_s``: seconds each step pretends to take."""

    def __init__(self, blocks: int, block_size: int, vocab_size: int = 1000, step_s: float = 0.0) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.end_ids: tuple[int, ...] = (vocab_size - 1,)
        self.fingerprint = FINGERPRINT
        self.token_bytes: Sequence[bytes] = oracle_token_bytes(vocab_size)
        self.computed = 0
        """Ids computed since the start."""
        self._step_s = step_s
        self._hash = PrefixHash()
        slots = blocks * block_size
        self._prefix = np.zeros(slots, np.uint64)
        self._ids = np.zeros(slots, np.int32)
        self._positions = np.full(slots, _UNWRITTEN, np.int64)

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        if self._step_s:
            time.sleep(self._step_s)
        self._check_groups(batch)
        hashes = np.zeros(len(batch.ids), np.uint64)
        writes: list[NDArray[np.intp]] = []
        for row in range(len(batch.context)):
            low, high = int(batch.row_start[row]), int(batch.row_start[row + 1])
            stop = int(batch.context[row])
            start = stop - (high - low)
            slots = self._slots(batch.block_tables[row], stop)
            before = self._read(row, slots[:start])
            hashes[low:high] = before + np.cumsum(self._hash.terms(batch.ids[low:high], start), dtype=np.uint64)
            writes.append(slots[start:])
        written = np.concatenate(writes)
        if len(np.unique(written)) != len(written):
            raise OracleMismatch("two rows of one step write the same slot")
        self._prefix[written] = hashes
        self._ids[written] = batch.ids
        self._positions[written] = batch.positions
        self.computed += len(batch.ids)
        return logits_of(hashes[batch.logit_rows], self.vocab_size, self.end_ids)

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleResult:
        return sampling.sample(logits, batch)

    def token_logprobs(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], top: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        return sampling.token_logprobs(logits, ids, top)

    def copy_blocks(self, source: NDArray[np.int32], target: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        size = self.block_size
        for a, b, count in zip(source.tolist(), target.tolist(), tokens.tolist(), strict=True):
            if not 0 < count <= size or a == b:
                raise OracleMismatch(f"{count} slots of block {a} are to be copied into block {b}")
            for column in (self._prefix, self._ids, self._positions):
                column[b * size : b * size + count] = column[a * size : a * size + count]
            self._positions[b * size + count : (b + 1) * size] = _UNWRITTEN

    # ------------------------------------------------------------ inside

    def _slots(self, table: NDArray[np.int32], stop: int) -> NDArray[np.intp]:
        positions = np.arange(stop)
        blocks: NDArray[np.intp] = table[positions // self.block_size].astype(np.intp)
        return blocks * self.block_size + positions % self.block_size

    def _read(self, row: int, slots: NDArray[np.intp]) -> Any:
        """Hash of what is stored; raises unless it is one unbroken sequence from position 0 on."""
        if not len(slots):
            return np.uint64(0)
        stored = self._prefix[slots]
        spelled = np.cumsum(self._hash.terms(self._ids[slots], 0), dtype=np.uint64)
        wrong = (stored != spelled) | (self._positions[slots] != np.arange(len(slots)))
        if wrong.any():
            at = int(wrong.argmax())
            block = int(slots[at]) // self.block_size
            raise OracleMismatch(
                f"row {row} of the step reads position {at} in block {block}, which holds position "
                f"{int(self._positions[slots[at]])} of another prefix"
            )
        return np.uint64(int(stored[-1]))

    def _check_groups(self, batch: Batch) -> None:
        for group in batch.groups:
            first, last = group.start // self.block_size, -(-group.stop // self.block_size)
            tables = batch.block_tables[group.rows, first:last]
            if (tables != tables[0]).any():
                raise OracleMismatch(f"rows {group.rows.tolist()} do not share [{group.start}, {group.stop})")


def oracle_token_bytes(vocab_size: int) -> list[bytes]:
    """What each id spells: one byte for the first 256, then a short word; the end id is special."""
    return [b"" if i == vocab_size - 1 else bytes([i]) if i < 256 else b" w%d" % i for i in range(vocab_size)]


def build_oracle(config: RuntimeConfig) -> tuple[OracleRunner, Compile | None]:
    """The runner of an oracle-worker process; constraints are not compiled there."""
    size = config.scheduler.block_size
    blocks = max((config.worker.kv_tokens or DEFAULT_TOKENS) // size, 1)
    return OracleRunner(blocks, size, config.worker.oracle_vocab, config.worker.oracle_step_s), None
