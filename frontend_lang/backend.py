"""What a program needs of whatever runs it.

A backend opens branches; a branch is one growing text: append, generate, select, fork, close. Backends that work in
token ids (the engine, a ramet server, the fake) implement :class:`TokenBackend` and share one branch, which keeps the
promise that generated ids are never encoded again (see ``token_branch.py``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ramet.runtime.protocol.messages import ConstraintSpec, StopHit, TokenLogprob, Usage

from .choices import TokenEntry
from .loop import LoopThread


@dataclass(frozen=True, slots=True)
class GenCall:
    """One generation, all defaults filled in. ``max_tokens`` None: the rest of the context. ``logprobs``: -1 none, k
    the chosen token's and the k best. ``prompt_logprobs_from``: absolute id index, -1 none. ``path``: forks that lead
    here, two numbers each (which fork of its parent, which child)."""

    max_tokens: int | None
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    path: tuple[int, ...] = ()
    constraint: ConstraintSpec | None = None
    logprobs: int = -1
    prompt_logprobs_from: int = -1
    priority: int = 0
    timeout_s: float | None = None
    heal: bool = False
    """The last token of the prompt's text may be said anew; see ``healing.py``."""
    spec_tokens: int = 0
    """Where a service charges by the call: ask for so many tokens at once, and match what the program appends."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that arrived, with its log-probabilities where they were asked for (entry, alternatives per token)."""

    choice: int
    text: str
    logprobs: tuple[tuple[TokenEntry, list[TokenEntry]], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one choice of a generation ended. ``reason``: stop, end or length; ``stop``: what ended it."""

    text: str
    reason: str
    usage: Usage
    ids: tuple[int, ...] = ()
    forced: tuple[bool, ...] = ()
    stop: str | int | None = None
    logprobs: tuple[tuple[TokenEntry, list[TokenEntry]], ...] = ()
    prompt_logprobs: tuple[TokenEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of each choice's tokens from the cut on. ``healed``: text between the cut and the choice, which
    the first tokens of every choice spell as well. ``plan``: what the branch needs to take a choice."""

    tokens: tuple[tuple[TokenEntry, ...], ...]
    unconditional: tuple[tuple[TokenEntry, ...], ...] | None
    usage: Usage
    healed: str
    plan: tuple[tuple[int, ...], ...]


class Branch(Protocol):
    """One growing text. All calls come from the backend's loop, one at a time."""

    path: tuple[int, ...]

    def append(self, text: str) -> None: ...
    def role_begin(self, role: str, first: bool) -> str:
        """Append what opens ``role`` and return it; ``first``: nothing was said before."""

    def role_end(self, role: str) -> str: ...
    async def generate(self, call: GenCall, keep: bool, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        """Generate and go on with choice 0. ``keep``: more calls will follow. Cancelling ends the generation."""

    async def score(self, choices: Sequence[str], unconditional: bool, call: GenCall) -> Scores: ...
    def take(self, scores: Scores, choice: int, text: str) -> None:
        """Append the choice that won, by its ids."""

    def fork(self, path: tuple[int, ...]) -> Branch: ...
    async def append_since_fork(self, child: Branch) -> str:
        """Append what ``child`` added since it was forked, generated ids as they are; returns the text."""

    def close(self) -> None:
        """Let go of the KV; ids and text stay, and a later call sends them again. Idempotent."""

    async def token_ids(self) -> Sequence[int]:
        """As far as they are known: text after the last call is not encoded yet."""

    def snippet(self, start: int, stop: int) -> str:
        """Text of ids[start:stop], special tokens included."""

    def pieces(self, outcome: Outcome) -> tuple[tuple[str, bool], ...]:
        """The generated text as runs of (text, forced)."""


class Backend(Protocol):
    loop: LoopThread

    @property
    def default_system(self) -> str | None:
        """What the chat template says by itself when no system message comes first: part of ``role_begin``'s text."""

    def open(self, path: tuple[int, ...] = ()) -> Branch: ...
    def tools_text(self, tools: Sequence[Mapping[str, object]]) -> str:
        """What is added to the system text so that the model knows the tools (name, description, parameters each)."""

    def role_stops(self) -> tuple[str, ...]:
        """Stops that the chat template adds inside a role."""

    async def flush_cache(self) -> None: ...
    async def server_info(self) -> dict[str, object]: ...
    def close(self) -> None: ...


# ---------------------------------------------------------------- backends that work in token ids

BranchKey = Hashable


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to encode. ``special``: template text, whose special tokens are tokens; in other text they are just text."""

    text: str
    special: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """The first ``at`` ids of a kept branch."""

    branch: BranchKey
    at: int


@dataclass(frozen=True, slots=True)
class End:
    """Terminal part of one choice."""

    reason: str
    usage: Usage
    stop: StopHit | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Text is held back for stops and unfinished characters; ids are as they come."""

    choice: int
    text: str
    ids: Sequence[int] = ()
    forced: Sequence[bool] = ()
    logprobs: Sequence[TokenLogprob] | None = None
    prompt_logprobs: tuple[int, Sequence[TokenLogprob]] | None = None
    """(absolute index of the first id, entries from there on)."""
    end: End | None = None
    cached: int = 0
    """Ids of the prompt that were cached."""


class TokenStream(Protocol):
    def __aiter__(self) -> AsyncGenerator[TokenChunk, None]: ...
    def cancel(self) -> None: ...
    def branch(self, choice: int) -> BranchKey: ...


class TokenBackend(Protocol):
    loop: LoopThread

    @property
    def keeps(self) -> bool:
        """Branches can be kept and cut; without it every call sends all its ids."""

    @property
    def trims(self) -> bool:
        """The chat template strips blanks at both ends of a message's content: the branch does the same."""

    async def encode(self, pieces: Sequence[Piece], start: bool) -> list[int]:
        """``start``: these begin a branch (adds the begin token where the model wants one)."""

    def decode(self, ids: Sequence[int]) -> bytes: ...
    def token_text(self, token: int) -> str: ...
    def begins_others(self, token: int) -> bool:
        """Other tokens begin with the bytes of this one."""

    def start_ids(self) -> list[int]:
        """At least one id that stands for "nothing before": the context of unconditional scores."""

    def generate(self, parent: Cut | None, ids: Sequence[int], call: GenCall, keep: bool) -> TokenStream: ...
    async def score(
        self, parent: Cut | None, ids: Sequence[int], continuations: Sequence[Sequence[int]], call: GenCall
    ) -> tuple[list[list[TokenLogprob]], Usage]: ...
    def release(self, branch: BranchKey) -> None: ...
    def role_begin(self, role: str, first: bool) -> list[Piece]: ...
    def role_end(self, role: str) -> list[Piece]: ...
