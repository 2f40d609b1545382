"""A client that answers by a function, and an encoder whose ids are characters: a job without a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ramet.runtime.frontend.requests import ChoiceResult, Chunk, Finish, GenerateRequest
from ramet.runtime.protocol.errors import RametError
from ramet.runtime.protocol.messages import Usage


class Characters:
    """Ids are code points; nothing is special."""

    special_tokens: ClassVar[dict[str, int]] = {}

    def encode(self, text: str, *, special: bool = False, follows: str = "nothing") -> list[int]:
        return [ord(character) for character in text]

    def token_bytes(self, id: int) -> bytes:
        return chr(id).encode()

    def decode(self, ids: Sequence[int]) -> bytes:
        return "".join(map(chr, ids)).encode()


class Turns:
    """A chat template: one line per turn."""

    def render(self, messages: list[dict[str, object]], add_generation_prompt: bool = True) -> str:
        turns = "".join(f"[{message['role']}]{message['content']}\n" for message in messages)
        return turns + "[assistant]"


@dataclass(frozen=True)
class Reply:
    """What the client answers: text, or an error; how it ends; after how many seconds."""

    text: str = "{}"
    reason: str = "end"
    error: RametError | None = None
    seconds: float = 0.0


class FakeGeneration:
    def __init__(self, client: FakeClient, request: GenerateRequest, reply: Reply) -> None:
        self._client, self._request, self._reply = client, request, reply

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for at, character in enumerate(self._reply.text):
            yield Chunk(0, at, character, [ord(character)], bytes([at % 2]))
        yield Chunk(0, len(self._reply.text), "", [], b"", finish=Finish("end", Usage()))

    async def result(self) -> list[ChoiceResult]:
        client, reply, prompt = self._client, self._reply, len(self._request.ids)
        client.running += 1
        client.most_running = max(client.most_running, client.running)
        try:
            await asyncio.sleep(reply.seconds)
        finally:
            client.running -= 1
        if reply.error is not None:
            raise reply.error
        ids = [ord(character) for character in reply.text]
        usage = Usage(prompt, prompt // 2, prompt - prompt // 2, len(ids), 1, len(ids) - 1)
        return [
            ChoiceResult(reply.text, ids, bytes(len(ids)), None, reply.reason, usage, None, (1, 0), prompt)  # type: ignore[arg-type]
        ]


@dataclass
class FakeClient:
    """Calls ``answer`` with the text of each prompt."""

    answer: Callable[[str], Reply] = field(default=lambda prompt: Reply(json.dumps({"n": len(prompt)})))
    running: int = 0
    most_running: int = 0
    requests: list[GenerateRequest] = field(default_factory=list)

    def generate(self, request: GenerateRequest) -> FakeGeneration:
        self.requests.append(request)
        return FakeGeneration(self, request, self.answer("".join(map(chr, request.ids))))
