"""What a job will cost, before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.runtime.protocol.messages import Usage

_DECODE = 8.0
"""A generated token of one record alone takes about as long as so many tokens of a prompt."""

_TOGETHER = 8.0
"""Records that are generated together share most of the work of each step: up to so many come for the price of one."""


@dataclass(frozen=True)
class Estimate:
    """Tokens of all prompts, those of them that come from the cache (the shared beginning), the longest document.
    ``seconds`` is a rough figure, from the first document's time; None where there was none."""

    documents: int
    prompt: int
    shared: int
    longest: int
    seconds: float | None

    def __str__(self) -> str:
        share = self.shared / self.prompt if self.prompt else 0.0
        time = "unknown" if self.seconds is None else f"about {self.seconds:.0f} s"
        return (
            f"documents={self.documents} prompt_tokens={self.prompt} shared_tokens={self.shared} ({share:.0%}) "
            f"longest_document={self.longest}\nexpected time on this machine: {time}"
        )


@dataclass
class Counts:
    """``prefix``, ``suffix``: tokens around each document."""

    prefix: int
    suffix: int
    documents: int = 0
    tokens: int = 0
    longest: int = 0

    def add(self, size: int) -> None:
        self.documents += 1
        self.tokens += size
        self.longest = max(self.longest, size)

    def estimate(self, first: tuple[Usage, float] | None, rows: int) -> Estimate:
        """first: tokens and seconds of the first document, alone and cold."""
        prompt = self.documents * (self.prefix + self.suffix) + self.tokens
        shared = max(0, self.documents - 1) * self.prefix
        return Estimate(
            self.documents,
            prompt,
            shared,
            self.longest,
            self._seconds(prompt - shared, first, min(rows, self.documents)),
        )

    def _seconds(self, computed: int, first: tuple[Usage, float] | None, rows: int) -> float | None:
        """In units of a prompt's token: a generated one costs ``_DECODE``, shared with those beside it."""
        if first is None:
            return None
        usage, seconds = first
        units = usage.computed + _DECODE * usage.completion
        if not units:
            return None
        generated = _DECODE * usage.completion * self.documents / min(_TOGETHER, max(1, rows))
        return seconds / units * (computed + generated)
