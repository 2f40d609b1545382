"""Log-probabilities in the two shapes of the API.

Values are the model's own (log softmax of its logits, before temperature, filters and constraints). ``FLOOR`` stands
for anything smaller: JSON has no infinities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ramet.runtime.frontend.detokenizer import Detokenizer
from ramet.runtime.protocol.messages import TokenLogprob
from ramet.runtime.tokenizer import Tokenizer

FLOOR = -9999.0


def finite(value: float) -> float:
    return value if math.isfinite(value) and value > FLOOR else FLOOR


class TokenNames:
    """How single tokens are shown: the text of their bytes; special tokens by their name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._table = tokenizer.token_table
        self._special = {token: name for name, token in tokenizer.special_tokens.items()}

    def bytes(self, token: int) -> bytes:
        return self._table[token] if token < len(self._table) else b""

    def text(self, token: int) -> str:
        return self._special.get(token) or self.bytes(token).decode("utf-8", "replace")

    def json_bytes(self, token: int) -> list[int] | None:
        """None for a special token, which is no part of the text."""
        return None if token in self._special else list(self.bytes(token))


class TokenNumbers(TokenNames):
    """Tokens shown as ``token_id:ID``, for callers that want ids and get names."""

    def text(self, token: int) -> str:
        return f"token_id:{token}"


def chat_entries(
    ids: Sequence[int], entries: Sequence[TokenLogprob], names: TokenNames, top: int
) -> list[dict[str, Any]]:
    """``logprobs.content`` of a chat choice: one entry per id, each with ``top`` alternatives."""
    return [
        {
            **_chat_token(token, entry.raw, names),
            "top_logprobs": [_chat_token(other, value, names) for other, value in entry.top[:top]],
        }
        for token, entry in zip(ids, entries, strict=True)
    ]


def _chat_token(token: int, value: float, names: TokenNames) -> dict[str, Any]:
    return {"token": names.text(token), "logprob": finite(value), "bytes": names.json_bytes(token)}


def prompt_entries(ids: Sequence[int], entries: Sequence[TokenLogprob], names: TokenNames, top: int) -> list[Any]:
    """``prompt_logprobs`` in vLLM's shape: null for the first id, then for each the ``top`` best and itself, by id.

    ``rank`` counts from 1; null for a token that is not among the best that were asked for.
    """
    result: list[Any] = [None]
    for token, entry in zip(ids[1:], entries, strict=True):
        best: dict[int, tuple[float, int | None]] = {
            other: (value, rank) for rank, (other, value) in enumerate(entry.top[:top], 1)
        }
        best.setdefault(token, (entry.raw, None))
        result.append(
            {
                str(other): {"logprob": finite(value), "rank": rank, "decoded_token": names.text(other)}
                for other, (value, rank) in best.items()
            }
        )
    return result


class CompletionLogprobs:
    """``logprobs`` of completion choices, piece by piece. ``top``: alternatives wanted; the chosen token is among them
    in any case. The first token of an echoed prompt has none (null): nothing stands in front of it."""

    def __init__(self, names: TokenNames, top: int) -> None:
        self._names = names
        self._top = top
        self._decoder = Detokenizer()
        self._offset = 0

    def piece(self, ids: Sequence[int], entries: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """``text_offset`` counts characters from the beginning of the choice's text."""
        offsets: list[int] = []
        for token in ids:
            offsets.append(self._offset)
            self._offset += len(self._decoder.feed(self._names.bytes(token)))
        return {
            "tokens": [self._names.text(token) for token in ids],
            "token_logprobs": [None if entry is None else finite(entry.raw) for entry in entries],
            "top_logprobs": [
                None if entry is None else self._alternatives(token, entry)
                for token, entry in zip(ids, entries, strict=True)
            ],
            "text_offset": offsets,
        }

    def _alternatives(self, token: int, entry: TokenLogprob) -> dict[str, float]:
        result: dict[str, float] = {}
        if self._top:
            for other, value in entry.top[: self._top]:
                result.setdefault(self._names.text(other), finite(value))
        result.setdefault(self._names.text(token), finite(entry.raw))
        return result
