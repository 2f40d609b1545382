"""A scripted scheduler over real sockets: what the client is tested against.

Generated ids are a hash of the row's key and the ids before, so a stream that was broken and resumed can be compared
with one that was not. Byte-level ids: id i < 256 is byte i.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import zmq.asyncio
from ramet.runtime.protocol import messages as m
from ramet.runtime.protocol.ids import pack_ids, unpack_ids
from ramet.runtime.protocol.randomness import choice_key, mix64
from ramet.runtime.protocol.transport import FrameDecoder, bind_router, encode_frame

END = 256
VOCAB = 260


class ByteTokenizer:
    """Ids 0 to 255 are the bytes; 256 to 259 are special."""

    vocab_size = VOCAB
    end_ids = (END,)
    bos_id = None
    token_table = [bytes([i]) for i in range(256)] + [b""] * 4
    special_tokens: ClassVar[dict[str, int]] = {"<|end|>": END}

    def encode(self, text: str, *, special: bool = False, follows: str = "nothing") -> list[int]:
        return list(text.encode("utf-8"))

    def text(self, ids: list[int]) -> str:
        return b"".join(self.token_table[token] for token in ids).decode("utf-8", "replace")


def next_id(key: int, ids: list[int], letters: bytes = b"abcdefgh ") -> int:
    state = key
    for token in ids[-8:]:
        state = mix64(state ^ token)
    return letters[mix64(state ^ len(ids)) % len(letters)]


@dataclass
class Row:
    client: bytes
    submit: m.Submit
    choice: int
    ids: list[int]
    key: int
    cached: int
    ended: bool = False

    @property
    def generated(self) -> list[int]:
        return self.ids[self.submit.n_prompt :]


@dataclass
class FakeScheduler:
    """``step`` appends one id to each row that runs. ``auto``: steps by itself every ``pause`` seconds."""

    endpoint: str
    epoch: int
    context: int = 512
    pause: float = 0.001
    auto: bool = True
    reject: Callable[[m.Submit], m.Rejected | None] = lambda _: None
    script: Callable[[m.Submit], bytes | None] = lambda _: None
    """What rows of a Submit generate, before they end by themselves; None: hashes until max_tokens."""
    rows: list[Row] = field(default_factory=list)
    branches: dict[tuple[bytes, int, int], Row] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)
    specs: list[str] = field(default_factory=list)

    async def __aenter__(self) -> FakeScheduler:
        self._context = zmq.asyncio.Context()
        self._socket = bind_router(self._context, self.endpoint)
        self._decoder: FrameDecoder[Any] = FrameDecoder(m.ToScheduler)
        self._tasks = [asyncio.create_task(self._receive())]
        if self.auto:
            self._tasks.append(asyncio.create_task(self._run()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.die()

    async def die(self) -> None:
        """As a killed process: what is in its sockets is lost."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._socket.closed:
            self._socket.close(linger=0)
            self._context.term()
            Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def got(self, kind: type) -> list[Any]:
        return [message for message in self.seen if type(message) is kind]

    async def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0.002)

        await asyncio.wait_for(wait(), timeout)

    async def send(self, client: bytes, *messages: Any) -> None:
        await self._socket.send_multipart([client, *encode_frame(self.epoch, messages)])

    async def _receive(self) -> None:
        while True:
            client, *parts = await self._socket.recv_multipart()
            epoch, messages = self._decoder.decode(parts)
            for message in messages:
                if epoch in (0, self.epoch):
                    self.seen.append(message)
                    await self._handle(client, message)

    async def _handle(self, client: bytes, message: Any) -> None:
        match message:
            case m.Hello():
                await self.send(
                    client, m.Hello(m.PROTOCOL_VERSION, "scheduler", self.epoch, self.epoch, "fake", 64, 16)
                )
            case m.Constraint(key=key):
                self.specs.append(key)
            case m.Control(call_id=id, op=op):
                await self.send(client, m.ControlReply(id, json.dumps({"op": op, "context": self.context}).encode()))
            case m.Score(id=id, continuations=parts):
                scores = tuple(tuple(m.TokenLogprob(-1.0, -1.0) for _ in unpack_ids(part)) for part in parts)
                await self.send(client, m.Scored(id, scores, m.Usage(prompt=len(unpack_ids(message.ids)))))
            case m.Cancel(id=id):
                for row in self.rows:
                    if row.submit.id == id and row.client == client and not row.ended:
                        await self._end(row, "cancelled")
            case m.Release(branch=(id, choice)):
                self.branches.pop((client, id, choice), None)
            case m.Submit():
                await self._submit(client, message)

    async def _submit(self, client: bytes, submit: m.Submit) -> None:
        refusal = self.reject(submit)
        ids = unpack_ids(submit.ids)
        if refusal is None and submit.parent is not None:
            (branch, choice), at = submit.parent
            parent = self.branches.get((client, branch, choice))
            if parent is None:
                refusal = m.Rejected(submit.id, "unknown_branch", "no such branch")
            else:
                ids = parent.ids[:at] + ids
        if refusal is None and submit.constraint_key and submit.constraint_key not in self.specs:
            refusal = m.Rejected(submit.id, "unknown_constraint", "no such constraint")
        if refusal is not None:
            await self.send(client, refusal)
            return
        await self.send(client, m.Accepted(submit.id))
        for index in range(submit.n):
            choice = submit.choice if submit.choice >= 0 else index
            key = submit.sampling.key if submit.choice >= 0 else choice_key(submit.sampling.key, index)
            row = Row(client, submit, choice, list(ids), key, 16 if submit.parent else 0)
            self.rows.append(row)
            self.branches[client, submit.id, choice] = row
            if 0 <= submit.logits_from < len(ids) - 1:
                scored = tuple(m.TokenLogprob(-1.0, -1.0) for _ in ids[submit.logits_from + 1 :])
                await self.send(client, m.PromptLogprobs(submit.id, choice, submit.logits_from + 1, scored))
            if submit.limits.max_tokens == 0:
                await self._end(row, "length")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.pause)
            await self.step()

    async def step(self) -> None:
        for row in list(self.rows):
            if row.ended:
                continue
            text = self.script(row.submit)
            if text is None:
                await self.append(row, next_id(row.key, row.ids))
            elif len(row.generated) < len(text):
                await self.append(row, text[len(row.generated)])
            else:
                await self._end(row, "end")

    async def append(self, row: Row, *ids: int) -> None:
        """As the worker: id by id; a stop counts in the id that completes it, from ``min_tokens`` on."""
        offset = len(row.ids)
        stop = None
        for token in ids:
            row.ids.append(token)
            text = bytes(row.generated)
            for which, pattern in enumerate(row.submit.stops.strings):
                if text.endswith(pattern) and len(row.generated) >= row.submit.limits.min_tokens:
                    stop = m.StopHit(which, len(row.ids) - len(pattern), b"")
            if stop is not None:
                break
        new = row.ids[offset:]
        logprobs = None
        if row.submit.logprobs >= 0:
            top = tuple((token, -token / 100) for token in range(row.submit.logprobs))
            logprobs = tuple(m.TokenLogprob(-token / 100, -token / 100, top) for token in new)
        delta = m.TokenDelta(row.submit.id, row.choice, offset, pack_ids(new), bytes(len(new)), logprobs, row.cached)
        await self.send(row.client, delta)
        if stop is not None:
            await self._end(row, "stop", stop)
        elif len(row.generated) >= row.submit.limits.max_tokens:
            await self._end(row, "length")

    async def _end(self, row: Row, reason: m.EndReason, stop: m.StopHit | None = None) -> None:
        row.ended = True
        count, prompt = len(row.generated), row.submit.n_prompt if row.choice == 0 else 0
        usage = m.Usage(prompt, row.cached, prompt - row.cached, count, 0, count)
        if not row.submit.keep:
            self.branches.pop((row.client, row.submit.id, row.choice), None)
        await self.send(row.client, m.Finished(row.submit.id, row.choice, reason, usage, stop))


_epochs = itertools.count(1)


def fresh_epoch() -> int:
    return next(_epochs)


def expected(submit_ids: list[int], key: int, count: int) -> list[int]:
    """What a row with this key generates, undisturbed."""
    ids = list(submit_ids)
    for _ in range(count):
        ids.append(next_id(key, ids))
    return ids[len(submit_ids) :]


def raw(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


def ids_of(submit: m.Submit) -> list[int]:
    return array("i", submit.ids).tolist()
