"""What the worker's core needs of a device: the one seam between row tails and a model (or the KV oracle).

``ModelRunner`` computes with a real model, ``OracleRunner`` checks block tables instead; the core cannot tell which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from ramet.kernels.ops import Batch, SampleBatch, SampleResult


class Runner(Protocol):
    """One device: its KV blocks, its forward pass and its sampler. Called from one thread at a time."""

    @property
    def blocks(self) -> int:
        """KV blocks of the pool, numbered from 0."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    @property
    def vocab_size(self) -> int:
        """V: width of the logits; ids are in [0, V)."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The model's own end ids."""

    @property
    def fingerprint(self) -> str:
        """Numerics fingerprint: weights, quantisation, kernels, ISA lane, KV type. KV never crosses fingerprints."""

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """Byte table: entry i is what id i spells; b"" for special ids. Shorter than V where V is padded."""

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """Store the batch's KV; logits [L, V] of ``batch.logit_rows`` (L may be 0), valid until the next call.

        Releases the GIL while it computes. Raises on failure; the step is then lost as a whole.
        """

    def sample(self, logits: NDArray[np.float32], batch: SampleBatch) -> SampleResult:
        """Draw one id per row of ``logits`` [L, V]."""

    def token_logprobs(
        self, logits: NDArray[np.float32], ids: NDArray[np.int32], top: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
        """(raw [L], top ids [L, top], top raw [L, top]): log-probability of ids[i] under logits[i]."""

    def copy_blocks(self, source: NDArray[np.int32], target: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """For each i, in order, copy the KV of the first tokens[i] slots of block source[i] into block target[i]."""
