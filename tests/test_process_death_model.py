"""The real model dies under load, and no stream notices: sampling, constraints and stops go on where they were."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
from pathlib import Path

import pytest
from ramet.runtime import store
from ramet.runtime.frontend.client import ChoiceResult, Client, GenerateRequest
from ramet.runtime.launch import Launcher
from ramet.runtime.protocol.config import RuntimeConfig, SchedulerConfig, WorkerConfig
from ramet.runtime.protocol.messages import ConstraintSpec
from ramet.runtime.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ramet.kernels._cpu") is None, reason="the C++ kernels are not built"),
]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "kind": {"enum": ["library", "command line tool", "framework"]},
        "purpose": {"type": "string", "maxLength": 80},
    },
    "required": ["name", "kind", "purpose"],
    "additionalProperties": False,
}


def requests(tokenizer: Tokenizer) -> list[GenerateRequest]:
    def prompt(text: str) -> list[int]:
        return tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", special=True)

    constraint = ConstraintSpec("json_schema", json.dumps(SCHEMA))
    return [
        GenerateRequest(ids=prompt("Tell a story about a river."), temperature=0.0, max_tokens=96, ignore_eos=True),
        GenerateRequest(ids=prompt("Tell a story about a hill."), seed=5, max_tokens=96, ignore_eos=True, logprobs=2),
        GenerateRequest(ids=prompt("Describe numpy as JSON."), temperature=0.0, max_tokens=96, constraint=constraint),
        GenerateRequest(
            ids=prompt("Describe pytest as JSON."), seed=6, max_tokens=96, constraint=constraint, logprobs=0
        ),
        GenerateRequest(ids=prompt("Count from one to fifty."), seed=7, max_tokens=96, stop=("twenty", "20", "\n\n\n")),
    ]


async def run(launcher: Launcher, tokenizer: Tokenizer, kills: int) -> list[ChoiceResult]:
    client = Client(launcher.config.frontend_endpoint, tokenizer)
    await client.start()
    try:
        streams = [client.generate(request) for request in requests(tokenizer)]
        seen = [0] * len(streams)

        async def consume(index: int) -> ChoiceResult:
            async for chunk in streams[index]:
                seen[index] += len(chunk.ids)
            return (await streams[index].result())[0]

        consuming = asyncio.gather(*(consume(i) for i in range(len(streams))))
        for kill in range(kills):
            while seen[0] < 12 * (kill + 1) or launcher.status().state != "ready":
                await asyncio.sleep(0.01)
            child = next(c for c in launcher.status().children if c.role == "worker")
            os.kill(child.pid, signal.SIGKILL)
            while any(c.pid == child.pid for c in launcher.status().children):
                await asyncio.sleep(0.01)
        return list(await asyncio.wait_for(consuming, 240))
    finally:
        await client.close()


def test_a_real_worker_is_killed_three_times_and_every_stream_ends_the_same(model_dir: Path) -> None:
    tokenizer = Tokenizer.load(store.open(model_dir))
    config = RuntimeConfig(
        model=str(model_dir),
        run_dir="",
        scheduler=SchedulerConfig(plan_depth=2, check_invariants=True),
        worker=WorkerConfig(kernels="cpu", kv_tokens=4096),
    )
    with Launcher(config) as launcher:
        undisturbed = asyncio.run(run(launcher, tokenizer, 0))
        disturbed = asyncio.run(run(launcher, tokenizer, 3))
        assert sum(child.restarts for child in launcher.status().children) == 3
    for left, right in zip(undisturbed, disturbed, strict=True):
        assert left.finish_reason in ("length", "end", "stop")
        assert (left.ids, left.text, left.finish_reason, left.stop) == (
            right.ids,
            right.text,
            right.finish_reason,
            right.stop,
        )
        assert left.logprobs == right.logprobs, "bit for bit"
        assert left.forced == right.forced
    for constrained in undisturbed[2:4]:
        if constrained.finish_reason == "end":
            assert set(json.loads(constrained.text)) == set(SCHEMA["properties"])  # type: ignore[call-overload]
