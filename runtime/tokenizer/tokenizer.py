"""The tokeniser: text to ids and back. Ids are the truth, and bytes are what they spell."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from ramet.runtime import store
from ramet.runtime.protocol.errors import InvalidModel, InvalidRequest
from ramet.runtime.store import ModelFolder, ModelMeta
from ramet.runtime.tokenizer.byte_table import TokenizerFile, token_bytes
from ramet.runtime.tokenizer.pieces import PIECE, Pieces, cuts_before_blanks
from ramet.runtime.tokenizer.prefix import Inner, inner
from ramet.runtime.tokenizer.vocabulary import Vocabulary, keep_vocabulary, kept_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HfTokenizer

Follows: TypeAlias = Literal["nothing", "special", "text"]
"""What stands in front of a text: it begins, or it comes after a special token, or after other text."""

_NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


class Tokenizer:
    """Immutable as seen from outside; may be used by several threads.

    ``vocab_size`` is the width of the model's logits; ids beyond the vocabulary, and control tokens, are in
    ``special_ids`` and spell no bytes. ``missing_bytes``: byte values that no sequence of tokens can spell: ``encode``
    refuses them, and text that must contain them cannot be generated. ``definition``: the text of tokenizer.json.
    The library's own tokeniser takes 0.1 s to build, so that waits until something is encoded.
    """

    def __init__(self, definition: str, meta: ModelMeta, kept: Path | None = None) -> None:
        """``kept``: a folder for what is derived from the vocabulary, so that it is derived once. Raises InvalidModel
        for a damaged definition."""
        self.definition = definition
        self._name = meta.name
        self._built_hf: dict[tuple[bool, bool], HfTokenizer] = {}
        self._lock = Lock()
        self.vocab_size = meta.vocab_size
        self.end_ids: tuple[int, ...] = meta.end_ids
        self.bos_id: int | None = meta.bos_id if meta.bos_id >= 0 else None
        text = f"{definition}\0{self.vocab_size}\0{self.end_ids}\0{sorted(meta.special_ids)}"
        self.fingerprint: str = hashlib.sha256(text.encode()).hexdigest()[:16]
        vocabulary = kept_vocabulary(kept, self.fingerprint)
        if vocabulary is None:
            vocabulary = self._derive(meta)
            keep_vocabulary(kept, self.fingerprint, vocabulary)
        self.special_ids: frozenset[int] = frozenset(meta.special_ids) | frozenset(vocabulary.unused)
        self.token_table: list[bytes] = vocabulary.table
        self.special_tokens: dict[str, int] = vocabulary.special_tokens
        spelled = {entry[0] for entry in self.token_table if len(entry) == 1}
        self.missing_bytes: frozenset[int] = frozenset(range(256)) - spelled
        wanted = re.escape(bytes(sorted(self.missing_bytes - _NEVER_IN_UTF8)))
        self._unspelled = re.compile(b"[%b]" % wanted) if wanted else None

    @property
    def hf(self) -> HfTokenizer:
        """The library's tokeniser, which reads control tokens. Raises InvalidModel."""
        return self._built(special=True)

    def warm(self) -> None:
        """Build what encoding needs, so that the first text does not wait for it."""
        for special in (True, False):
            self._built(special=special)

    def _built(self, *, special: bool, inside: bool = False) -> HfTokenizer:
        """One for each way of reading, and never changed again: so a text may be encoded on a thread for seconds, and
        nobody else waits for it. ``inside``: for text that does not begin a prompt."""
        with self._lock:
            hf = self._built_hf.get((special, inside))
            if hf is None:
                hf = self._build(self._inner.definition if inside and self._inner is not None else self.definition)
                hf.encode_special_tokens = not special
                self._built_hf[special, inside] = hf
            return hf

    def _build(self, definition: str) -> HfTokenizer:
        from tokenizers import Tokenizer as HfTokenizer

        try:
            return HfTokenizer.from_str(definition)
        except Exception as error:  # the library raises bare Exception
            raise self._damaged(error) from error

    @cached_property
    def _inner(self) -> Inner | None:
        return inner(self.definition)

    def _within(self, follows: Follows) -> bool:
        """Whether text that stands there takes the tokeniser for what does not begin a prompt."""
        if follows == "nothing" or self._inner is None:
            return False
        return follows == "text" or self._inner.after_special

    def _damaged(self, error: Exception) -> InvalidModel:
        return InvalidModel(f"tokenizer.json of {self._name} cannot be read: {error}")

    def _derive(self, meta: ModelMeta) -> Vocabulary:
        hf = self.hf
        try:
            file = msgspec.json.decode(self.definition, type=TokenizerFile)
        except msgspec.MsgspecError as error:
            raise self._damaged(error) from error
        ids = hf.get_vocab(with_added_tokens=True)
        added = {index: token.content for index, token in hf.get_added_tokens_decoder().items()}
        used = set(ids.values())
        unused = [index for index in range(self.vocab_size) if index not in used]
        table = token_bytes(ids, added, frozenset(meta.special_ids) | frozenset(unused), self.vocab_size, file)
        return Vocabulary(table, unused, {added[index]: index for index in meta.special_ids if index in added})

    @classmethod
    def load(cls, folder: ModelFolder | Path | str) -> Tokenizer:
        """The tokeniser of a prepared model folder (see ``ramet.runtime.store``)."""
        model = folder if isinstance(folder, ModelFolder) else store.open(folder)
        return cls(model.tokenizer.read_text(encoding="utf-8"), model.meta, model.path)

    def encode(self, text: str, *, special: bool = False, follows: Follows = "nothing") -> list[int]:
        """Ids of ``text``, without a begin-of-text id.

        ``special``: control tokens written in the text become their ids (for text of templates); otherwise they are
        ordinary text, as anything that a user writes must be. ``follows``: what stands in front of the text; where a
        tokeniser writes a blank in front of texts, it does so at their beginning alone. Raises InvalidRequest for text
        that is not Unicode, and for characters that no sequence of tokens spells.
        """
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                "the text holds half of a surrogate pair (U+D800 to U+DFFF), which is not valid Unicode.",
                param="prompt",
            ) from error
        if self._unspelled is not None and self._unspelled.search(data):
            self._check_characters(text)
        return self._ids(text, special, follows)

    def _ids(self, text: str, special: bool, follows: Follows) -> list[int]:
        if len(text) > 2 * PIECE and self._pieces is not None:
            return self._pieces.ids(text, special)
        return self._whole(text, special, self._within(follows))

    @cached_property
    def _pieces(self) -> Pieces | None:
        """None if this tokeniser may put what stands on both sides of a blank into one token."""
        return Pieces(self._whole) if cuts_before_blanks(self.definition) else None

    def _whole(self, text: str, special: bool, inside: bool = False) -> list[int]:
        hf = self._built(special=special, inside=inside)
        ids: list[int] = hf.encode(text, add_special_tokens=False).ids
        return ids

    def _check_characters(self, text: str) -> None:
        """Raises InvalidRequest if one has a byte that is no token and is not part of a longer token either."""
        assert self._unspelled is not None
        for character in dict.fromkeys(text):
            data = character.encode()
            if self._unspelled.search(data) and data not in self.decode(self._ids(character, False, "nothing")):
                raise InvalidRequest(
                    f"the text holds the character U+{ord(character):04X}, which no token of this model's vocabulary "
                    "spells; remove or replace it.",
                    param="prompt",
                    code="character_not_in_vocabulary",
                )

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
