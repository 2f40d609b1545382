"""What has arrived of one choice of a generation."""

from __future__ import annotations

from collections.abc import Sequence

from .backend import Delta, End, TokenBackend, TokenChunk
from .choices import TokenEntry

Entry = tuple[TokenEntry, list[TokenEntry]]
"""(the chosen token, the best ones)."""


class Choice:
    """``prompt``: ids of the prompt, for its log-probabilities."""

    __slots__ = ("end", "forced", "ids", "logprobs", "prompt", "prompt_logprobs", "texts")

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = prompt
        self.texts: list[str] = []
        self.ids: list[int] = []
        self.forced: list[bool] = []
        self.logprobs: list[Entry] = []
        self.prompt_logprobs: list[TokenEntry] = []
        self.end: End | None = None

    def add(self, chunk: TokenChunk, backend: TokenBackend) -> Delta | None:
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
        return Delta(chunk.choice, chunk.text, tuple(new)) if chunk.text or new else None
