"""The engine's view of a tokeniser, built once per tokeniser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ramet.runtime.constrain.unique import TokenIndex

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer as HfTokenizer


class TokenizerLike(Protocol):
    """What constraints need of ``ramet.runtime.tokenizer.Tokenizer``."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def end_ids(self) -> tuple[int, ...]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def token_table(self) -> list[bytes]: ...
    @property
    def hf(self) -> HfTokenizer: ...
    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """``engine``: llguidance's tokeniser, whose byte table comes from the vocabulary and never from decoding ids.

    ``end_ids``: every id that ends a row. ``missing``: byte values that no token holds, so no text can have them.
    """

    engine: LLTokenizer
    size: int
    end_ids: tuple[int, ...]
    missing: frozenset[int]
    fingerprint: str
    table: Sequence[bytes]

    @cached_property
    def tokens(self) -> TokenIndex:
        """For constraints that must know what tokens spell."""
        return TokenIndex(self.table)

    @property
    def words(self) -> int:
        """Length of a mask row in 32-bit words."""
        return (self.size + 31) // 32


def build_vocabulary(tokenizer: TokenizerLike) -> Vocabulary:
    """Takes about 0.3 s for 49,152 tokens: keep the result."""
    from llguidance import LLTokenizer

    end_ids = tuple(tokenizer.end_ids)
    engine = LLTokenizer(
        tokenizer.hf.to_str(),
        n_vocab=tokenizer.vocab_size,
        eos_token=list(end_ids),
        slices=LLTokenizer.json_slices(),
    )
    return Vocabulary(
        engine=engine,
        size=tokenizer.vocab_size,
        end_ids=end_ids,
        missing=missing_bytes(tokenizer.token_table),
        fingerprint=tokenizer.fingerprint,
        table=tokenizer.token_table,
    )


def missing_bytes(table: Sequence[bytes]) -> frozenset[int]:
    """Byte values found in no token of the table."""
    present: set[int] = set()
    for token in table:
        present.update(token)
    return frozenset(range(256)) - present
