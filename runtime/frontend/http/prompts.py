"""Prompts of completions: one or several, as text or as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import bad_request
from .lower import truncated
from .server import Server

MAX_PROMPTS = 1024


@dataclass(frozen=True)
class Prompt:
    text: str
    ids: list[int]


def read_prompts(
    server: Server,
    given: str | list[str] | list[int] | list[list[int]],
    *,
    special: bool = True,
    keep: int | None = None,
) -> list[Prompt]:
    """``special``: text begins with the begin-of-text id, where the model wants one. ``keep``: see ``truncated``.

    Raises HttpError for empty ones.
    """
    tokenizer = server.tokenizer
    several: list[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)
    if not several or len(several) > MAX_PROMPTS:
        raise bad_request(f"prompt holds {len(several)} prompts; 1 to {MAX_PROMPTS} are possible", "prompt")
    prompts: list[Prompt] = []
    for index, one in enumerate(several):
        if isinstance(one, str):
            ids = tokenizer.encode(one)
            if special and server.meta.add_bos and tokenizer.bos_id is not None:
                ids = [tokenizer.bos_id, *ids]
            prompt = Prompt(one, ids)
        else:
            in_range = [token for token in one if 0 <= token < tokenizer.vocab_size]
            prompt = Prompt(tokenizer.text(in_range), one)
        if not prompt.ids:
            raise bad_request(f"prompt {index} is empty; at least one token is needed", "prompt", "empty_prompt")
        kept = truncated(prompt.ids, keep, server.client.context)
        if kept is not prompt.ids:
            prompt = Prompt(tokenizer.text([token for token in kept if 0 <= token < tokenizer.vocab_size]), kept)
        prompts.append(prompt)
    return prompts
