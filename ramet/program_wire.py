"""What goes over the wire when a server runs compiled programs.

A request is JSON. Its answer comes in one of two forms:

variables   a JSON object a line: values as they come, and for each item its result or error; for people and other
            languages
calls       frames of msgpack behind their length: what every call became, so that the states of a DSL program can be
            made of them; for ``ramet.RuntimeEndpoint``
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ramet.frontend_lang.backend import Delta, Outcome, Scores
from ramet.frontend_lang.errors import ProgramError
from ramet.frontend_lang.graph import Graph
from ramet.frontend_lang.token_branch import Made
from ramet.runtime.frontend.http.errors import translate
from ramet.runtime.protocol.errors import GenerationFailed, RametError


class ProgramsBody(msgspec.Struct, frozen=True):
    """``items``: arguments of each run, as text. ``stream``: texts as they grow, too. ``answer``: variables, or
    calls."""

    graph: Graph
    items: list[dict[str, str]]
    options: dict[str, Any] = {}
    stream: bool = False
    answer: str = "variables"


class NewsBody(msgspec.Struct, frozen=True):
    """What a client says to a run: answers of the tools that branch ``path`` of root ``root`` has called (None: one of
    them failed for good), or that nobody waits for ``item`` any more."""

    item: int
    root: int = 0
    path: tuple[int, ...] = ()
    answers: list[str] | None = None
    cancel: bool = False


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    message: str
    type: str = ""
    code: str = ""
    param: str | None = None
    variable: str | None = None
    file: str = ""
    line: int = 0


class AskedTool(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any]


class Result(msgspec.Struct, frozen=True):
    """``returned``: what the body returned."""

    text: str
    messages: list[dict[str, str]]
    variables: dict[str, Any]
    metas: dict[str, Any]
    returned: Any


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of a ``variables`` answer. ``run``: the name that news of the client are sent to. ``text``: more of
    variable ``name``; ``value``: all of it. ``tools``: to be called, and answered by a POST (with ``root`` and
    ``path``)."""

    run: str = ""
    item: int = -1
    name: str = ""
    text: str = ""
    value: Any = None
    tools: list[AskedTool] = []
    root: int = 0
    path: tuple[int, ...] = ()
    result: Result | None = None
    error: Failure | None = None


class CallNews(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A frame of a ``calls`` answer: one of these things of one branch, or the end of an item."""

    item: int
    root: int = 0
    path: tuple[int, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    made: Made | None = None
    scores: Scores | None = None
    diverged: str = ""
    delta: Delta | None = None
    failure: Failure | None = None
    cancelled: bool = False
    end: bool = False
    run: str = ""


_news = msgspec.msgpack.Decoder(CallNews)


def frame(news: CallNews) -> bytes:
    data = msgspec.msgpack.encode(news)
    return len(data).to_bytes(4, "big") + data


async def frames_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[CallNews]:
    """The frames of a body."""
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        place = 0
        while len(rest) - place >= 4:
            stop = place + 4 + int.from_bytes(rest[place : place + 4], "big")
            if stop > len(rest):
                break
            yield _news.decode(memoryview(rest)[place + 4 : stop])
            place = stop
        del rest[:place]


def failure_of(error: Exception) -> Failure:
    """As OpenAI's API names errors, with the place in the program."""
    cause = error.cause if isinstance(error, ProgramError) and error.cause is not None else error
    shown = translate(cause if isinstance(cause, RametError) else GenerationFailed(str(cause))).body()["error"]
    known = error if isinstance(error, ProgramError) else None
    return Failure(
        str(error),
        shown["type"],
        shown["code"],
        shown["param"],
        None if known is None else known.variable,
        "" if known is None else known.where.file,
        0 if known is None else known.where.line,
    )
