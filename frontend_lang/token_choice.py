"""What has arrived of one choice of a generation."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.runtime.protocol.messages import StopHit, Usage

from .backend import Delta, End, TokenBackend, TokenChunk
from .choices import TokenEntry
from .stop_regex import RegexStop

Entry = tuple[TokenEntry, list[TokenEntry]]
"""(the chosen token, the best ones)."""


class Choice:
    """``prompt``: ids of the prompt, for its log-probabilities."""

    __slots__ = (
        "_n_prompt",
        "_watch",
        "end",
        "forced",
        "ids",
        "logprobs",
        "matched",
        "prompt",
        "prompt_logprobs",
        "texts",
    )

    def __init__(self, prompt: Sequence[int], watch: RegexStop | None = None) -> None:
        self.prompt = prompt
        self._n_prompt = len(prompt)
        self._watch = watch
        self.matched: str | None = None
        """What a regular expression matched, if one ended the text."""
        self.texts: list[str] = []
        self.ids: list[int] = []
        self.forced: list[bool] = []
        self.logprobs: list[Entry] = []
        self.prompt_logprobs: list[TokenEntry] = []
        self.end: End | None = None

    def add(self, chunk: TokenChunk, backend: TokenBackend) -> Delta | None:
        if self.end is not None:
            return None
        self.ids.extend(chunk.ids)
        self.forced.extend(chunk.forced)
        new: list[Entry] = []
        for token, one in zip(chunk.ids, chunk.logprobs or (), strict=False):
            top: list[TokenEntry] = [(value, other, backend.token_text(other)) for other, value in one.top]
            new.append(((one.raw, token, backend.token_text(token)), top))
        self.logprobs.extend(new)
        if chunk.text:
            self.texts.append(chunk.text)
        if chunk.prompt_logprobs is not None:
            first, entries = chunk.prompt_logprobs
            scored = zip(self.prompt[first : first + len(entries)], entries, strict=True)
            self.prompt_logprobs = [(one.raw, token, backend.token_text(token)) for token, one in scored]
        if chunk.end is not None:
            self.end = chunk.end
        if self._watch is not None:
            self._look(self._watch, chunk)
        return Delta(chunk.choice, chunk.text, tuple(new)) if chunk.text or new else None

    def _look(self, watch: RegexStop, chunk: TokenChunk) -> None:
        """End the choice where an expression matches, unless it ended in front of that."""
        stop = None if chunk.end is None else chunk.end.stop
        last = len(self.ids) if stop is None else stop.at - self._n_prompt
        hit = watch.feed(self.ids[len(self.ids) - len(chunk.ids) : last])
        if hit is None:
            return
        forced = sum(self.forced[: hit.seen])
        prompt = self._n_prompt
        cached = chunk.cached if chunk.end is None else chunk.end.usage.cached
        usage = Usage(prompt, cached, prompt - cached, hit.seen, forced, hit.seen - forced)
        self.end = End("stop", usage, StopHit(0, prompt + hit.kept, hit.leftover))
        self.texts, self.matched = [hit.text], hit.matched
        self.logprobs = self.logprobs[: hit.kept]

    def whole(self, index: int) -> Delta:
        """All that came, for texts that are shown when they are complete."""
        return Delta(index, "".join(self.texts), tuple(self.logprobs))
