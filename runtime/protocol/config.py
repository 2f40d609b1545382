"""The one configuration, frozen, handed to each process as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct


class Switches(Struct, frozen=True):
    """Parts of the scheduler that can be turned off, to see what each brings (``ramet simulate``, tests)."""

    tree: bool = True
    order: Literal["cache-aware", "fcfs", "random"] = "cache-aware"
    pending: bool = True
    grouping: bool = True
    hints: bool = True
    force_miss: bool = False
    """Never match the cache (commits still happen): for tests of cache transparency."""
    preempt_every: int = 0
    """k > 0: push back one running row at every k-th step: for tests of preemption."""


class SchedulerConfig(Struct, frozen=True):
    block_size: int = 8
    chunk_tokens: int = 512
    """Token budget of one step, over all rows."""
    max_rows: int = 64
    max_queued: int = 10_000
    context: int = 0
    """Longest branch in tokens; 0: the model's own."""
    policy: Literal["lru", "lfu", "slru", "priority"] = "lru"
    plan_depth: int = 2
    """Plans that may stand at the worker at once (1: next plan after the last result; 2: queued plans)."""
    max_overtakes: int = 64
    quotas: dict[str, int] = {}
    """Tokens that a tenant may keep cached; others have no limit of their own."""
    retained_share: float = 0.25
    """Part of the KV pool that soft retention ("keep for N seconds") may hold."""
    spare_forced: int = 16
    check_invariants: bool = False
    switches: Switches = Switches()


class WorkerConfig(Struct, frozen=True):
    kernels: Literal["auto", "cpu", "reference", "oracle"] = "auto"
    isa: str = "auto"
    kv_dtype: Literal["auto", "f32", "bf16", "f16", "int8"] = "auto"
    kv_tokens: int = 0
    """KV pool in tokens; 0: sized from free memory."""
    threads: int = 0
    """0: one per core."""
    jump_forward: bool = True
    oracle_vocab: int = 1000
    oracle_step_s: float = 0.0
    """Oracle only: seconds each step pretends to take."""


class RuntimeConfig(Struct, frozen=True):
    """``model``: folder in the model store (see ``ramet.runtime.store``); empty for the oracle.

    ``run_dir``: private directory of this runtime's ipc sockets and logs.
    """

    model: str
    run_dir: str
    scheduler: SchedulerConfig = SchedulerConfig()
    worker: WorkerConfig = WorkerConfig()
    parent_pid: int = 0
    """Children end when this process does."""

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> RuntimeConfig:
        return msgspec.json.decode(text, type=RuntimeConfig)

    @property
    def frontend_endpoint(self) -> str:
        return f"ipc://{self.run_dir}/frontend.sock"

    @property
    def worker_endpoint(self) -> str:
        return f"ipc://{self.run_dir}/worker.sock"
