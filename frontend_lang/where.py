"""Where in the user's program an expression was written."""

from __future__ import annotations

import sys
from dataclasses import dataclass

_OWN = "ramet."


@dataclass(frozen=True, slots=True)
class Where:
    """A source line: shown in errors and traces."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


UNKNOWN = Where("<unknown>", 0, "<unknown>")


def caller() -> Where:
    """The nearest frame outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not (name.startswith(_OWN) or name == "ramet" or name in ("dataclasses", "contextlib")):
            return Where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return UNKNOWN
