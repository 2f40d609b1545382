"""The tokeniser: text to ids and back. Ids are the truth, and bytes are what they spell."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
from ramet.runtime import store
from ramet.runtime.protocol.errors import InvalidModel, InvalidRequest
from ramet.runtime.store import ModelFolder, ModelMeta
from ramet.runtime.tokenizer.byte_table import TokenizerFile, token_bytes
from tokenizers import Tokenizer as HfTokenizer


class Tokenizer:
    """Immutable once made; may be used by several threads.

    ``vocab_size`` is the width of the model's logits; ids beyond the vocabulary, and control tokens, are in
    ``special_ids`` and spell no bytes. ``missing_bytes``: byte values that no sequence of tokens can spell: ``encode``
    leaves them out, and text that must contain them cannot be generated.
    """

    def __init__(self, definition: str, meta: ModelMeta) -> None:
        """``definition``: the text of tokenizer.json. Raises InvalidModel if it is damaged."""
        try:
            self.hf = HfTokenizer.from_str(definition)
            self._literal = HfTokenizer.from_str(definition)
            file = msgspec.json.decode(definition, type=TokenizerFile)
        except Exception as error:  # the library raises bare Exception
            raise InvalidModel(f"tokenizer.json of {meta.name} cannot be read: {error}") from error
        self._literal.encode_special_tokens = True  # special tokens in plain text are ordinary text
        vocabulary = self.hf.get_vocab(with_added_tokens=True)
        added = {index: token.content for index, token in self.hf.get_added_tokens_decoder().items()}
        self.vocab_size = meta.vocab_size
        self.end_ids: tuple[int, ...] = meta.end_ids
        self.bos_id: int | None = meta.bos_id if meta.bos_id >= 0 else None
        used = set(vocabulary.values())
        unused = {index for index in range(self.vocab_size) if index not in used}
        self.special_ids: frozenset[int] = frozenset(meta.special_ids) | unused
        self.token_table: list[bytes] = token_bytes(vocabulary, added, self.special_ids, self.vocab_size, file)
        self.special_tokens: dict[str, int] = {added[i]: i for i in meta.special_ids if i in added}
        spelled = {entry[0] for entry in self.token_table if len(entry) == 1}
        self.missing_bytes: frozenset[int] = frozenset(range(256)) - spelled
        text = f"{definition}\0{self.vocab_size}\0{self.end_ids}\0{sorted(meta.special_ids)}"
        self.fingerprint: str = hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def load(cls, folder: ModelFolder | Path | str) -> Tokenizer:
        """The tokeniser of a prepared model folder (see ``ramet.runtime.store``)."""
        model = folder if isinstance(folder, ModelFolder) else store.open(folder)
        return cls(model.tokenizer.read_text(encoding="utf-8"), model.meta)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of ``text``, without a begin-of-text id. Bytes that the vocabulary cannot spell are left out.

        ``special``: control tokens written in the text become their ids (for text of templates); otherwise they are
        ordinary text, as anything that a user writes must be. Raises InvalidRequest for text that is not Unicode.
        """
        try:
            ids: list[int] = (self.hf if special else self._literal).encode(text, add_special_tokens=False).ids
        except TypeError as error:
            if not isinstance(text, str):
                raise
            raise InvalidRequest(
                "the text holds half of a surrogate pair (U+D800 to U+DFFF), which is not valid Unicode."
            ) from error
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that ``token`` spells, b"" for special ids. Raises IndexError beyond the vocabulary."""
        if token < 0:
            raise IndexError(f"token id {token} is negative")
        return self.token_table[token]

    def decode(self, ids: Iterable[int]) -> bytes:
        table = self.token_table
        return b"".join([table[token] for token in ids])

    def text(self, ids: Iterable[int]) -> str:
        """UTF-8 text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        return self.decode(ids).decode("utf-8", errors="replace")
