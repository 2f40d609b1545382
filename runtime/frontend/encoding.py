"""Long texts on their way to ids: encoded on a thread, so that streams go on meanwhile, and refused where their size
alone says that they do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from ramet.runtime.protocol.errors import InvalidRequest

LONG_TEXT = 20_000
"""Characters from which encoding gets a thread."""

T = TypeVar("T")


class Spelling(Protocol):
    @property
    def token_table(self) -> Sequence[bytes]: ...

    @property
    def special_tokens(self) -> Mapping[str, int]: ...


async def beside_loop(size: int, encode: Callable[[], T]) -> T:
    """What ``encode`` returns or raises. ``size``: characters that it encodes."""
    return encode() if size < LONG_TEXT else await asyncio.to_thread(encode)


def longest_token(tokenizer: Spelling) -> int:
    """Bytes of text that one token may stand for."""
    specials = (len(text.encode()) for text in tokenizer.special_tokens)
    return max(1, *map(len, tokenizer.token_table), *specials)


def check_size(text: str, context: int, longest: int) -> None:
    """Raises InvalidRequest for a text that takes more than ``context`` tokens (0: not known), however it is encoded:
    no token stands for more than ``longest`` bytes."""
    most = context * longest
    if not most or len(text) * 4 <= most:
        return
    size = len(text.encode(errors="surrogatepass"))
    if size > most:
        raise InvalidRequest(
            f"the prompt has {size} bytes, which are more than {size // longest} tokens, but the context of this model "
            f"is {context} tokens; shorten the prompt",
            param="prompt",
            code="context_length_exceeded",
        )
