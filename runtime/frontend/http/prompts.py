"""Prompts of completions: one or several, as text or as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ramet.runtime.frontend.encoding import beside_loop
from ramet.runtime.frontend.requests import too_long

from .errors import bad_request, translate
from .lower import truncated
from .server import Server

MAX_PROMPTS = 1024
MAX_CHOICES = 4096


@dataclass(frozen=True)
class Prompt:
    text: str
    ids: list[int]


def check_count(prompts: int, n: int | None) -> None:
    """Raises HttpError for more texts than one request may ask for."""
    if prompts * (n or 1) > MAX_CHOICES:
        raise bad_request(
            f"{prompts} prompts with n {n} are {prompts * (n or 1)} texts; at most {MAX_CHOICES} come of one request",
            "n",
        )


async def read_prompts(
    server: Server,
    given: str | list[str] | list[int] | list[list[int]],
    *,
    special: bool = True,
    keep: int | None = None,
) -> list[Prompt]:
    """``special``: text begins with the begin-of-text id, where the model wants one. ``keep``: see ``truncated``.

    Raises HttpError for empty ones, and for those that are longer than the context.
    """
    several: list[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)
    if not several or len(several) > MAX_PROMPTS:
        raise bad_request(f"prompt holds {len(several)} prompts; 1 to {MAX_PROMPTS} are possible", "prompt")

    def read() -> list[Prompt]:
        return [_read(server, index, one, special, keep) for index, one in enumerate(several)]

    return await beside_loop(sum(map(len, several)), read)


def _read(server: Server, index: int, given: str | list[int], special: bool, keep: int | None) -> Prompt:
    tokenizer, context = server.tokenizer, server.client.context
    if isinstance(given, str):
        if keep is None:
            server.check_size(given)
        text, ids = given, tokenizer.encode(given)
        if special and server.meta.add_bos and tokenizer.bos_id is not None:
            ids = [tokenizer.bos_id, *ids]
    else:
        text, ids = None, given
    if not ids:
        raise bad_request(f"prompt {index} is empty; at least one token is needed", "prompt", "empty_prompt")
    kept = truncated(ids, keep, context)
    if context and len(kept) > context:
        raise translate(too_long(len(kept), context))
    if text is None or kept is not ids:
        text = tokenizer.text([token for token in kept if 0 <= token < tokenizer.vocab_size])
    return Prompt(text, kept)
