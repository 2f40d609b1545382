"""What the processes need of a vocabulary besides encoding: derived once, then read from a file in milliseconds."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

import msgspec
from msgspec import Struct

FORMAT = 2


class Vocabulary(Struct, frozen=True, array_like=True):
    """``table``: the bytes of each id, b"" for special and unused ones; ``unused``: ids that the tokeniser lacks;
    ``special_tokens``: text to id of control tokens."""

    table: list[bytes]
    unused: list[int]
    special_tokens: dict[str, int]


def kept_vocabulary(folder: Path | None, fingerprint: str) -> Vocabulary | None:
    """What ``keep_vocabulary`` has written for this tokeniser; None if that is not there, or not whole."""
    if folder is None:
        return None
    try:
        data = _path(folder, fingerprint).read_bytes()
        check, body = int.from_bytes(data[:4], "little"), data[4:]
        return msgspec.msgpack.decode(body, type=Vocabulary) if len(data) > 4 and zlib.crc32(body) == check else None
    except (OSError, msgspec.MsgspecError):
        return None


def keep_vocabulary(folder: Path | None, fingerprint: str, vocabulary: Vocabulary) -> None:
    """The file appears whole. A folder that cannot be written is left alone."""
    if folder is None:
        return
    path = _path(folder, fingerprint)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    body = msgspec.msgpack.encode(vocabulary)
    with contextlib.suppress(OSError):
        try:
            temporary.write_bytes(zlib.crc32(body).to_bytes(4, "little") + body)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _path(folder: Path, fingerprint: str) -> Path:
    return folder / f"vocabulary-{FORMAT}-{fingerprint}"
