"""A scripted backend for tests: no model, no processes, the same states, ids and cuts as the real one.

Text is encoded in bytes (id = byte), template tokens are ids from 256 on. What is kept and released is checked: a cut
of a branch that was released, or a release too much, raises at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from ramet.runtime.protocol.errors import InvalidConstraint, InvalidRequest
from ramet.runtime.protocol.messages import StopHit, TokenLogprob, Usage

from .backend import Branch, BranchKey, Cut, End, GenCall, Piece, TokenChunk
from .loop import LoopThread
from .token_branch import TokenBranch

Script = Callable[[str, GenCall], str]
OPEN, CLOSE, START = 256, 257, 258
_SPECIAL = {"<|open|>": OPEN, "<|close|>": CLOSE}
_SPLIT = re.compile("|".join(map(re.escape, _SPECIAL)))


def words(prompt: str, call: GenCall) -> str:
    """Default script: 12 letters that depend on the prompt, the seed and the path."""
    key = f"{prompt}|{call.seed}|{call.path}".encode()
    return " " + "".join(chr(97 + byte % 26) for byte in hashlib.sha256(key).digest()[:12])


class FakeBackend:
    """``script``: a list of answers, given in order; a mapping from the end of a prompt to its answer; or a function of
    (prompt, call). ``delay_s``: seconds per chunk of ``chunk`` bytes. ``context``: longest branch in ids."""

    keeps = True

    def __init__(
        self,
        script: Sequence[str] | Mapping[str, str] | Script = words,
        *,
        delay_s: float = 0.0,
        chunk: int = 3,
        context: int = 1 << 20,
        default_system: str | None = None,
        trims: bool = False,
    ) -> None:
        self.loop = LoopThread("ramet-fake")
        self.default_system = default_system
        self.trims = trims
        self.requests: list[FakeRequest] = []
        self.kept: dict[BranchKey, array[int]] = {}
        self._unkept: set[BranchKey] = set()
        """Of calls that did not come to their end."""
        self.running = 0
        self._script = _as_script(script)
        self._delay_s, self._chunk, self._context = delay_s, chunk, context

    # ------------------------------------------------------------ Backend

    def open(self, path: tuple[int, ...] = ()) -> Branch:
        return TokenBranch(self, path)

    def tools_text(self, tools: Sequence[Mapping[str, object]]) -> str:
        return "\n\n" + "\n".join(json.dumps(tool) for tool in tools)

    def role_stops(self) -> tuple[str, ...]:
        return ()

    async def flush_cache(self) -> None:
        return

    async def server_info(self) -> dict[str, object]:
        return {"model": "fake", "kept": len(self.kept)}

    def close(self) -> None:
        self.loop.close()

    async def pause(self) -> None:
        """In front of each chunk."""
        await asyncio.sleep(self._delay_s)

    # ------------------------------------------------------------ TokenBackend

    async def encode(self, pieces: Sequence[Piece], start: bool) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            place = 0
            for match in _SPLIT.finditer(piece.text) if piece.special else ():
                ids += piece.text[place : match.start()].encode()
                ids.append(_SPECIAL[match.group()])
                place = match.end()
            ids += piece.text[place:].encode()
        return ids

    def decode(self, ids: Sequence[int]) -> bytes:
        return bytes(token for token in ids if token < 256)

    def token_text(self, token: int) -> str:
        return self.decode([token]).decode("utf-8", "replace")

    def begins_others(self, token: int) -> bool:
        return False

    def start_ids(self) -> list[int]:
        return [START]

    def role_begin(self, role: str, first: bool) -> list[Piece]:
        default = f"<|open|>system\n{self.default_system}<|close|>\n" if self.default_system else ""
        opening = default if first and role != "system" else ""
        return [Piece(f"{opening}<|open|>{role}\n", special=True)]

    def role_end(self, role: str) -> list[Piece]:
        return [Piece("<|close|>\n", special=True)]

    def release(self, branch: BranchKey) -> None:
        if branch in self._unkept:
            self._unkept.discard(branch)
            self.kept.pop(branch, None)
            return
        if branch not in self.kept:
            raise AssertionError(f"branch {branch} was released twice, or never kept")
        del self.kept[branch]

    def _whole(self, parent: Cut | None, ids: Sequence[int]) -> list[int]:
        if parent is None:
            return list(ids)
        if parent.branch not in self.kept:
            raise AssertionError(f"branch {parent.branch} is used after its release")
        return [*self.kept[parent.branch][: parent.at], *ids]

    def generate(self, parent: Cut | None, ids: Sequence[int], call: GenCall, keep: bool) -> FakeStream:
        prompt = self._whole(parent, ids)
        if len(prompt) >= self._context:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens, the context holds {self._context}",
                code="context_length_exceeded",
            )
        if call.constraint is not None and call.constraint.kind == "regex":
            try:
                re.compile(call.constraint.text)
            except re.error as error:
                raise InvalidConstraint(f"regex {call.constraint.text!r} does not parse: {error}") from None
        request = FakeRequest(len(self.requests), prompt, parent, call, keep)
        self.requests.append(request)
        return FakeStream(self, request)

    async def score(
        self, parent: Cut | None, ids: Sequence[int], continuations: Sequence[Sequence[int]], call: GenCall
    ) -> tuple[list[list[TokenLogprob]], Usage]:
        """Log-probabilities that depend on the whole prefix."""
        prompt = self._whole(parent, ids)
        rows = []
        for row in continuations:
            rows.append([TokenLogprob(v, v) for v in (logprob([*prompt, *row[:i]], t) for i, t in enumerate(row))])
        return rows, Usage(prompt=len(prompt), computed=len(prompt))


def logprob(prefix: Sequence[int], token: int) -> float:
    """A made-up log-probability below 0, the same for the same (prefix, token)."""
    digest = hashlib.sha256(repr((list(prefix), token)).encode()).digest()
    return math.log((digest[0] + 1) / 300.0)


@dataclass(slots=True)
class FakeRequest:
    """What was sent to the fake: the whole prompt, the cut it was sent as, and the call."""

    number: int
    prompt: list[int]
    parent: Cut | None
    call: GenCall
    keep: bool
    cancelled: bool = False

    @property
    def text(self) -> str:
        return bytes(token for token in self.prompt if token < 256).decode("utf-8", "replace")


class FakeStream:
    def __init__(self, backend: FakeBackend, request: FakeRequest) -> None:
        self._backend, self._request = backend, request

    def branch(self, choice: int) -> BranchKey:
        return (self._request.number, choice)

    def cancel(self) -> None:
        """As of an engine: what was to be kept stays with the backend until it is released."""
        self._request.cancelled = True
        if self._request.keep:
            self._backend._unkept.update(self.branch(choice) for choice in range(self._request.call.n))

    async def __aiter__(self) -> AsyncGenerator[TokenChunk, None]:
        backend, request = self._backend, self._request
        backend.running += 1
        try:
            for choice in range(request.call.n):
                async for chunk in self._choice(choice):
                    yield chunk
        finally:
            backend.running -= 1

    async def _choice(self, choice: int) -> AsyncIterator[TokenChunk]:
        backend, request, call = self._backend, self._request, self._request.call
        prompt = request.text if choice == 0 else f"{request.text}#{choice}"
        answer = backend._script(prompt, call).encode()
        pattern = call.constraint.text if call.constraint is not None and call.constraint.kind == "regex" else None
        if pattern is not None and not re.fullmatch(pattern, answer.decode()):
            raise InvalidRequest(f"the script answers {answer!r}, which regex {pattern!r} refuses")
        ids, text, reason, stop = _cut(answer, len(request.prompt), call)
        if request.keep:
            backend.kept[self.branch(choice)] = array("i", [*request.prompt, *ids])
        sent = 0
        for place in range(0, max(1, len(text)), backend._chunk):
            await backend.pause()
            shown = text[place : place + backend._chunk]
            last = place + backend._chunk >= len(text)
            count = len(ids) - sent if last else len(shown.encode())
            new = ids[sent : sent + count]
            sent += count
            end = None
            if last:
                usage = Usage(len(request.prompt), 0, len(request.prompt), len(ids), 0, len(ids))
                end = End(reason, usage, stop)
            wanted = call.logprobs >= 0
            yield TokenChunk(
                choice,
                shown,
                new,
                [False] * len(new),
                [TokenLogprob(-0.5, -0.5, ((t, -0.5),)) for t in new] if wanted else None,
                end=end,
            )


def _cut(answer: bytes, n_prompt: int, call: GenCall) -> tuple[list[int], str, str, StopHit | None]:
    """(ids, text, reason, stop) of an answer under the call's stops and limit."""
    limit = len(answer) if call.max_tokens is None else min(call.max_tokens, len(answer))
    found = [(answer.find(s.encode()), which) for which, s in enumerate(call.stop)]
    hits = [(at, which) for at, which in found if at >= 0 and at + len(call.stop[which].encode()) <= limit]
    if hits:
        at, which = min(hits)
        stop = StopHit(which, n_prompt + at, b"")
        whole = answer[: at + len(call.stop[which].encode())]
        return list(whole), answer[:at].decode("utf-8", "replace"), "stop", stop
    ids = list(answer[:limit])
    return ids, answer[:limit].decode("utf-8", "replace"), "length" if limit < len(answer) else "end", None


def _as_script(script: Sequence[str] | Mapping[str, str] | Script) -> Script:
    if callable(script):
        return script
    if isinstance(script, Mapping):
        table = dict(script)

        def look_up(prompt: str, call: GenCall) -> str:
            for ending in sorted(table, key=len, reverse=True):
                if prompt.endswith(ending):
                    return table[ending]
            raise InvalidRequest(f"the script has no answer to a prompt that ends with {prompt[-60:]!r}")

        return look_up
    answers = iter(script)

    def take(prompt: str, call: GenCall) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise InvalidRequest("the script has no more answers") from None

    return take
