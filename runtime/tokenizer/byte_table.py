"""The bytes of each token, out of the vocabulary's own alphabet.

Decoding one id at a time would lose them: many tokens are parts of a UTF-8 character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class _Decoder(Struct):
    type: str
    decoders: list[_Decoder] = []


class TokenizerFile(Struct):
    """The part of tokenizer.json that says how tokens spell bytes."""

    decoder: _Decoder | None = None


def byte_level_alphabet() -> dict[str, int]:
    """Character to byte of the byte-level alphabet: printable Latin-1 characters stand for themselves, the other bytes
    in ascending order for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def _kinds(decoder: _Decoder | None) -> set[str]:
    if decoder is None:
        return set()
    kinds = {decoder.type}
    for part in decoder.decoders:
        kinds |= _kinds(part)
    return kinds


def token_bytes(
    vocabulary: Mapping[str, int], added: Mapping[int, str], special: frozenset[int], size: int, file: TokenizerFile
) -> list[bytes]:
    """``size`` entries, b"" for special and unused ids. ``added``: ids whose text stands for itself."""
    table = [b""] * size
    byte_level = "ByteLevel" in _kinds(file.decoder)
    alphabet = byte_level_alphabet()
    for token, index in vocabulary.items():
        if index >= size or index in special:
            continue
        if index in added:
            text = added[index]
            table[index] = (text if byte_level else text.replace("\u2581", " ")).encode()
        elif byte_level:
            try:
                table[index] = bytes([alphabet[char] for char in token])
            except KeyError:  # a token outside the alphabet is never made by encoding
                table[index] = token.encode()
        elif match := _BYTE_TOKEN.fullmatch(token):
            table[index] = bytes([int(match[1], 16)])
        else:
            table[index] = token.replace("\u2581", " ").encode()
    return table
