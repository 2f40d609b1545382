"""The engine's view of a tokeniser, built once per tokeniser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from ramet.runtime.constrain.closing import Closers, closers_of
from ramet.runtime.constrain.forcing import Tails
from ramet.runtime.constrain.strings.chars import CharSet, charset
from ramet.runtime.constrain.trie import Trie, trie_of
from ramet.runtime.constrain.unique import TokenIndex

if TYPE_CHECKING:
    from llguidance import LLTokenizer


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
    def definition(self) -> str: ...
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
    encode: Callable[[str], list[int]]

    @cached_property
    def tokens(self) -> TokenIndex:
        """For constraints that must know what tokens spell."""
        return TokenIndex(self.table)

    @cached_property
    def tails(self) -> Tails:
        """For forced ids."""
        return Tails(self.encode, self.table)

    @cached_property
    def closers(self) -> Closers:
        """For values that are brought to a close."""
        return closers_of(self.table, self.end_ids, self.words)

    @cached_property
    def trie(self) -> Trie:
        """For building tables."""
        return trie_of([b"" if token in self.end_ids else spelled for token, spelled in enumerate(self.table)])

    @cached_property
    def first_bytes(self) -> NDArray[np.int16]:
        """[V] first byte of each token, -1 for tokens that spell nothing."""
        return np.array([token[0] if token else -1 for token in self.table], np.int16)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """[V] bytes of each token."""
        return np.array([len(token) for token in self.table], np.int32)

    @cached_property
    def single_bytes(self) -> dict[int, int]:
        """Byte to the token that spells it alone."""
        return {token[0]: index for index, token in enumerate(self.table) if len(token) == 1}

    @cached_property
    def unspeakable(self) -> CharSet:
        """Characters that no text can have: a byte of theirs is missing."""
        return characters_with(self.missing)

    @property
    def words(self) -> int:
        """Length of a mask row in 32-bit words."""
        return (self.size + 31) // 32


def build_vocabulary(tokenizer: TokenizerLike) -> Vocabulary:
    """Takes about 0.3 s for 49,152 tokens: keep the result."""
    from llguidance import LLTokenizer

    end_ids = tuple(tokenizer.end_ids)
    engine = LLTokenizer(
        tokenizer.definition,
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
        encode=tokenizer.encode,
    )


def missing_bytes(table: Sequence[bytes]) -> frozenset[int]:
    """Byte values found in no token of the table."""
    present: set[int] = set()
    for token in table:
        present.update(token)
    return frozenset(range(256)) - present


def characters_with(first_bytes: Iterable[int]) -> CharSet:
    """Characters whose UTF-8 begins with one of these bytes."""
    ranges = []
    for byte in first_bytes:
        if byte < 0x80:
            ranges.append((byte, byte))
        elif 0xC2 <= byte < 0xE0:
            ranges.append(((byte & 0x1F) << 6, ((byte & 0x1F) << 6) + 0x3F))
        elif 0xE0 <= byte < 0xF0:
            ranges.append((max((byte & 0xF) << 12, 0x800), ((byte & 0xF) << 12) + 0xFFF))
        elif 0xF0 <= byte < 0xF5:
            ranges.append((max((byte & 7) << 18, 0x10000), min(((byte & 7) << 18) + 0x3FFFF, 0x10FFFF)))
    return charset(ranges)
