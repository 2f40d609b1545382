"""Text and ids of one model, as programs need them: encoding of pieces, roles, tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial

from ramet.frontend_lang.backend import Piece
from ramet.runtime.frontend.chat import ChatTemplate
from ramet.runtime.frontend.encoding import beside_loop
from ramet.runtime.frontend.tools import tools_text
from ramet.runtime.store import ModelMeta
from ramet.runtime.tokenizer import Follows, Tokenizer


class TextSide:
    """The half of ``TokenBackend`` that needs no model, only its tokeniser and chat template."""

    def __init__(self, tokenizer: Tokenizer, meta: ModelMeta) -> None:
        self.tokenizer = tokenizer
        self.meta = meta
        self._beginnings: dict[int, bool] = {}
        special = sorted(tokenizer.special_tokens, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, special))})") if special else None

    @cached_property
    def template(self) -> ChatTemplate:
        """Raises InvalidRequest for a base model, which has none: programs without roles work all the same."""
        return ChatTemplate(self.meta, self.tokenizer)

    @cached_property
    def default_system(self) -> str | None:
        return self.template.default_system or None

    def tools_text(self, tools: Sequence[Mapping[str, object]]) -> str:
        return f"\n\n{tools_text(tools)}"

    def role_stops(self) -> tuple[str, ...]:
        return ()  # a turn ends with an end token, which the worker knows

    @property
    def trims(self) -> bool:
        return self.template.fragments.trims

    async def encode(self, pieces: Sequence[Piece], start: bool) -> list[int]:
        ids: list[int] = []
        follows: Follows = "nothing" if start else "text"
        for part in self._parts(pieces):
            if isinstance(part, int):
                ids.append(part)
                follows = "special"
                continue
            encode = partial(self.tokenizer.encode, part, follows=follows)
            ids += await beside_loop(len(part), encode)
            follows = "text"
        bos = self.tokenizer.bos_id
        if start and self.meta.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def _parts(self, pieces: Sequence[Piece]) -> list[str | int]:
        """Text between special tokens as a whole (template text and the user's own are one text), and the tokens."""
        parts: list[str | int] = []
        text: list[str] = []

        def flush() -> None:
            if text:
                parts.append("".join(text))
                text.clear()

        for piece in pieces:
            if not piece.special or self._special is None:
                text.append(piece.text)
                continue
            for item in self._special.split(piece.text):
                token = self.tokenizer.special_tokens.get(item)
                if token is not None:
                    flush()
                    parts.append(token)
                elif item:
                    text.append(item)
        flush()
        return parts

    def decode(self, ids: Sequence[int]) -> bytes:
        return self.tokenizer.decode(ids)

    def token_text(self, token: int) -> str:
        spelled = self.tokenizer.token_bytes(token)
        if not spelled and token in self.tokenizer.special_ids:
            return str(self.tokenizer.hf.id_to_token(token) or "")
        return spelled.decode("utf-8", "replace")

    def begins_others(self, token: int) -> bool:
        if token not in self._beginnings:
            spelled, table = self.tokenizer.token_bytes(token), self.tokenizer.token_table
            self._beginnings[token] = bool(spelled) and any(
                len(other) > len(spelled) and other.startswith(spelled) for other in table
            )
        return self._beginnings[token]

    def start_ids(self) -> list[int]:
        """What stands between documents in training: <|endoftext|>, or the begin token, or an end token."""
        token = self.tokenizer.special_tokens.get("<|endoftext|>")
        if token is None:
            token = self.tokenizer.bos_id
        return [self.tokenizer.end_ids[0] if token is None else token]

    def role_begin(self, role: str, first: bool) -> list[Piece]:
        prefix = self.template.fragments.prefix if first else ""
        return [Piece(prefix + self.template.fragments.begin(role, first), special=True)]

    def role_end(self, role: str) -> list[Piece]:
        return [Piece(self.template.fragments.end(role), special=True)]
