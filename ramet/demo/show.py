"""How the demo looks on a terminal: the first record as it streams, and the table of all."""

from __future__ import annotations

import codecs
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from ramet.runtime.frontend.requests import Chunk

_WIDEST = 26
_DIM, _BRIGHT, _OFF = "\x1b[2m", "\x1b[1;96m", "\x1b[0m"


class Decoder(Protocol):
    def decode(self, ids: Sequence[int]) -> bytes: ...


class LiveText:
    """Writes a generation as it comes: what the schema forced is dim, what the model chose is bright.

    Without colours, the text alone.
    """

    def __init__(self, decoder: Decoder, out: TextIO, *, colour: bool) -> None:
        self._decoder = decoder
        self._out = out
        self._colour = colour
        self._partial = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def __call__(self, chunk: Chunk) -> None:
        for token, forced in zip(chunk.ids, chunk.forced, strict=True):
            text = self._partial.decode(self._decoder.decode([token]))
            if self._colour and text:
                text = f"{_DIM if forced else _BRIGHT}{text}{_OFF}"
            self._out.write(text)
        self._out.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None) -> str:
    """Columns as wide as their longest cell, up to a limit; the last one is cut where the terminal ends."""
    width = width if width is not None else shutil.get_terminal_size((120, 24)).columns
    longest = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header) - 1)]
    widths = [min(size, _WIDEST) for size in longest]
    rest = max(len(header[-1]), width - sum(widths) - 2 * len(widths))

    def line(cells: Sequence[str]) -> str:
        *front, last = cells
        padded = [_cut(cell, size).ljust(size) for cell, size in zip(front, widths, strict=True)]
        return "  ".join([*padded, _cut(last, rest)]).rstrip()

    rule = line(["-" * size for size in widths] + ["-" * min(rest, 40)])
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."
