"""The branch of every backend that works in token ids.

    ids      0 ........ held.at ........ len(ids)   pending
             | KV kept at the backend | to send   | text, not yet encoded

Text waits in ``pending`` until a call needs ids: so text between two generations is encoded as a whole. Generated ids
are appended as they came and never encoded again; what a stop left of its token goes in front of the next text.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ramet.runtime.protocol.errors import GenerationFailed, InvalidRequest
from ramet.runtime.protocol.messages import TokenLogprob

from .backend import Branch, BranchKey, Cut, Delta, GenCall, Outcome, Piece, Scores, TokenBackend
from .choices import TokenEntry
from .healing import healing_call
from .stop_regex import RegexStop
from .token_choice import Choice


class Held:
    """A branch kept at the backend, shared by the branches that were forked off it; the last one releases it."""

    __slots__ = ("_backend", "_users", "key")

    def __init__(self, backend: TokenBackend, key: BranchKey) -> None:
        self._backend = backend
        self.key = key
        self._users = 1

    def share(self) -> Held:
        self._users += 1
        return self

    def drop(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._backend.release(self.key)


@dataclass(frozen=True, slots=True)
class Made:
    """Generated ids in the log of a branch, with the text that they (and a stop's leftover) stand for. ``instead``:
    they begin with the text of the id in front of them, which they replace (token healing)."""

    ids: tuple[int, ...]
    text: str
    leftover: str
    instead: str = ""


class TokenBranch:
    """See the module. Not thread-safe: the backend's loop only."""

    def __init__(self, backend: TokenBackend, path: tuple[int, ...] = ()) -> None:
        self.path = path
        self.ids = array("i")
        self._backend = backend
        self._pending: list[Piece] = []
        self._held: Held | None = None
        self._at = 0
        self._log: list[Piece | Made] = []
        self._forked_at = 0
        self._blank = False
        """A message is open and has no content yet."""

    # ------------------------------------------------------------ text

    def append(self, text: str) -> None:
        if self._blank and self._backend.trims:
            text = text.lstrip()
        if text:
            self._blank = False
            self._add([Piece(text)])

    def role_begin(self, role: str, first: bool) -> str:
        self._blank = True
        return self._add(self._backend.role_begin(role, first))

    def role_end(self, role: str) -> str:
        self._blank = False
        if self._backend.trims:
            self._strip_pending()
        return self._add(self._backend.role_end(role))

    def _strip_pending(self) -> None:
        """Take the blanks off the end of the content, as far as it is not encoded yet."""
        while self._pending and not self._pending[-1].special:
            text = self._pending[-1].text.rstrip()
            if text:
                self._pending[-1] = Piece(text)
                return
            self._pending.pop()

    def _add(self, pieces: Sequence[Piece]) -> str:
        self._pending.extend(pieces)
        self._log.extend(pieces)
        return "".join(piece.text for piece in pieces)

    async def _encode(self) -> None:
        if self._pending:
            pieces, self._pending = self._pending, []
            self.ids.extend(await self._backend.encode(pieces, start=not self.ids))

    def _extend(self, ids: Sequence[int]) -> None:
        """Ids that were generated or chosen elsewhere."""
        self.ids.extend(ids)

    def _take_back(self) -> None:
        """The last id was replaced."""
        self.ids.pop()

    async def token_ids(self) -> Sequence[int]:
        return self.ids

    # ------------------------------------------------------------ generating

    async def generate(self, call: GenCall, keep: bool, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        new = bool(self._pending) and not self._pending[-1].special
        await self._encode()
        if not self.ids:
            raise InvalidRequest("there is no text to generate from: append some text before the first gen")
        self._blank = False
        if not (call.heal and new and len(self.ids) > 1 and self._backend.begins_others(self.ids[-1])):
            return await self._generate(call, keep, on_delta)
        healing = healing_call(call, self._backend.decode(self.ids[-1:]))
        if healing is None:
            return await self._generate(call, keep, on_delta)
        return await self._healed(*healing, keep, on_delta)

    async def _healed(
        self, call: GenCall, instead: str, keep: bool, on_delta: Callable[[Delta], None]
    ) -> list[Outcome]:
        """The last id is said anew; ``instead``, its text, is not shown again."""
        last = self.ids.pop()
        hidden = [len(instead)] * call.n

        def arrived(delta: Delta) -> None:
            cut = min(hidden[delta.choice], len(delta.text))
            hidden[delta.choice] -= cut
            if cut < len(delta.text) or delta.logprobs:
                on_delta(Delta(delta.choice, delta.text[cut:], delta.logprobs))

        try:
            outcomes = await self._generate(call, keep, arrived)
        except BaseException:
            self.ids.append(last)
            raise
        made = self._log.pop()
        assert isinstance(made, Made)
        if made.text.startswith(instead):
            self._log.append(replace(made, text=made.text[len(instead) :], instead=instead))
        else:  # it ended inside the old token
            self.close()
            del self.ids[len(self.ids) - len(made.ids) :]
            self.ids.append(last)
            self._pending = []
        return [replace(outcome, text=outcome.text[len(instead) :]) for outcome in outcomes]

    async def _generate(self, call: GenCall, keep: bool, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        whole = bool(call.stop_regex)  # what an expression may cut off again is not shown
        keep = keep and self._backend.keeps and not call.stop_regex
        parent, ids = self._cut(len(self.ids))
        stream = self._backend.generate(parent, ids, call, keep)
        spell = self._backend.decode
        choices = [
            Choice(self.ids, RegexStop(call.stop_regex, lambda token: spell([token])) if call.stop_regex else None)
            for _ in range(call.n)
        ]
        try:
            async with contextlib.aclosing(stream.__aiter__()) as chunks:
                async for chunk in chunks:
                    delta = choices[chunk.choice].add(chunk, self._backend)
                    if delta is not None and not whole:
                        on_delta(delta)
                    if whole and all(one.end is not None for one in choices) and any(one.matched for one in choices):
                        stream.cancel()
                        break
            outcomes = [self._outcome(choice, call) for choice in choices]
        except BaseException:
            stream.cancel()
            for index in range(call.n if keep else 0):  # choices that had ended already
                self._backend.release(stream.branch(index))
            raise
        for index in range(1, call.n if keep else 0):
            self._backend.release(stream.branch(index))
        self._go_on(choices[0], outcomes[0], Held(self._backend, stream.branch(0)) if keep else None)
        if whole:
            for index, choice in enumerate(choices):
                on_delta(choice.whole(index))
        return outcomes

    def _cut(self, at: int) -> tuple[Cut | None, Sequence[int]]:
        """ids[:at] as (what the backend keeps of it, the rest)."""
        if self._held is None:
            return None, self.ids[:at]
        known = min(self._at, at)
        if known == 0:
            return None, self.ids[:at]
        return Cut(self._held.key, known), self.ids[known:at]

    def _outcome(self, choice: Choice, call: GenCall) -> Outcome:
        end = choice.end
        if end is None:
            raise GenerationFailed("the generation ended without a result")
        if end.reason in ("error", "cancelled"):
            raise GenerationFailed(end.message or f"the generation ended with {end.reason!r}")
        stop: str | int | None = choice.matched
        if end.stop is not None and stop is None:
            which = end.stop.which
            stop = call.stop[which] if which >= 0 else call.stop_token_ids[-1 - which]
        ids = choice.ids if end.stop is None else choice.ids[: end.stop.at - len(self.ids)]
        return Outcome(
            "".join(choice.texts),
            end.reason,
            end.usage,
            tuple(ids),
            tuple(choice.forced[: len(ids)]),
            stop,
            tuple(choice.logprobs),
            tuple(choice.prompt_logprobs),
        )

    def _go_on(self, choice: Choice, outcome: Outcome, held: Held | None) -> None:
        ids = list(outcome.ids)
        leftover = choice.end.stop.leftover if choice.end is not None and choice.end.stop is not None else b""
        # A stop may leave the second half of a character whose first half is in the id before it: take that one too.
        while leftover and not _whole(leftover) and ids:
            leftover = self._backend.decode([ids.pop()]) + leftover
        rest = leftover.decode("utf-8", "replace")
        self.ids.extend(ids)
        self._log.append(Made(tuple(ids), outcome.text, rest))
        if rest:
            self._pending.append(Piece(rest))
        if held is not None:
            self.close()
            self._held, self._at = held, len(self.ids)

    # ------------------------------------------------------------ choices

    async def score(self, choices: Sequence[str], unconditional: bool, call: GenCall) -> Scores:
        """The cut is the last place where the prompt's own ids agree with those of prompt + choice, for every choice:
        each is scored in the encoding that its text has. Generated ids in front are never touched."""
        pending, start = self._pending, not self.ids
        alone = [await self._backend.encode([Piece(choice)], start=False) for choice in choices]
        if pending:
            prompt = await self._backend.encode(pending, start=start)
            whole = [await self._backend.encode([*pending, Piece(choice)], start=start) for choice in choices]
            common = min(_common(prompt, ids) for ids in whole)
            common = min(common, min(len(ids) for ids in whole) - 1)
        else:
            prompt, whole, common = [], alone, 0
        head, tails = prompt[:common], [ids[common:] for ids in whole]
        parent, ids = self._cut(len(self.ids))
        context = [*ids, *head]
        if parent is None and not context:
            context = self._backend.start_ids()
        logprobs, usage = await self._backend.score(parent, context, tails, call)
        free: tuple[tuple[TokenEntry, ...], ...] | None = None
        if unconditional:
            bare, _ = await self._backend.score(None, self._backend.start_ids(), alone, call)
            free = tuple(self._entries(row, scored) for row, scored in zip(alone, bare, strict=True))
        return Scores(
            tuple(self._entries(row, scored) for row, scored in zip(tails, logprobs, strict=True)),
            free,
            usage,
            self._backend.decode(prompt[common:]).decode("utf-8", "replace"),
            tuple((*head, *tail) for tail in tails),
        )

    def _entries(self, ids: Sequence[int], scored: Sequence[TokenLogprob]) -> tuple[TokenEntry, ...]:
        return tuple((one.raw, token, self._backend.token_text(token)) for token, one in zip(ids, scored, strict=True))

    def take(self, scores: Scores, choice: int, text: str) -> None:
        self._pending = []
        self._extend(scores.plan[choice])
        self._log.append(Piece(text))

    # ------------------------------------------------------------ forks

    def fork(self, path: tuple[int, ...]) -> TokenBranch:
        child = self._child(path)
        child.ids = self.ids[:]
        child._pending = list(self._pending)
        child._log = list(self._log)
        child._blank = self._blank
        child._forked_at = len(self._log)
        if self._held is not None:
            child._held, child._at = self._held.share(), self._at
        return child

    def _child(self, path: tuple[int, ...]) -> TokenBranch:
        return TokenBranch(self._backend, path)

    async def append_since_fork(self, child: Branch) -> str:
        if not isinstance(child, TokenBranch):
            raise TypeError("only branches of the same backend can be concatenated")
        texts: list[str] = []
        for item in child._log[child._forked_at :]:
            if isinstance(item, Piece):
                self._add([item])
                texts.append(item.text)
            else:
                await self._encode()
                if item.instead:
                    self._take_back()
                self._extend(item.ids)
                self._log.append(item)
                texts.append(item.text)
                if item.leftover:
                    self._pending.append(Piece(item.leftover))
        return "".join(texts)

    # ------------------------------------------------------------ seeing

    def snippet(self, start: int, stop: int) -> str:
        runs: list[str] = []
        plain: list[int] = []
        for token in self.ids[start:stop]:
            if self._backend.decode([token]):
                plain.append(token)
            else:
                runs += [self._backend.decode(plain).decode("utf-8", "replace"), self._backend.token_text(token)]
                plain = []
        return "".join([*runs, self._backend.decode(plain).decode("utf-8", "replace")])

    def pieces(self, outcome: Outcome) -> tuple[tuple[str, bool], ...]:
        runs: list[tuple[list[int], bool]] = []
        for token, flag in zip(outcome.ids, outcome.forced, strict=False):
            if not runs or runs[-1][1] != flag:
                runs.append(([], flag))
            runs[-1][0].append(token)
        return tuple((self._backend.decode(ids).decode("utf-8", "replace"), flag) for ids, flag in runs)

    def close(self) -> None:
        if self._held is not None:
            self._held.drop()
            self._held, self._at = None, 0


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def _whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
