"""The six workload shapes. Prompts are text; their token counts are exact for one tokeniser, without the salt.

A salt line in front of each prompt (of the system message, in chats) is new in each repetition: caches start cold, and
are warm only through what the workload itself shares.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from ramet.bench.passages import Passages
from ramet.bench.text import words
from ramet.runtime.tokenizer import Tokenizer

Kind = Literal["completion", "chat"]

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "subject": {"type": "string", "minLength": 3, "maxLength": 48},
        "tone": {"type": "string", "enum": ["plain", "formal", "friendly", "legal"]},
        "clarity": {"type": "integer", "minimum": 1, "maximum": 5},
        "names_a_person": {"type": "boolean"},
        "share_of_prose": {"type": "number"},
        "keywords": {
            "type": "array",
            "items": {"type": "string", "minLength": 2, "maxLength": 16},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["subject", "tone", "clarity", "names_a_person", "share_of_prose", "keywords"],
    "additionalProperties": False,
}
"""W6: six fields of six types; every keyword is one that the peers enforce as well."""


class Session(Struct, frozen=True):
    """What one client does, turn after turn. ``system``: of a chat; ``turns``: user turns, or the one prompt."""

    turns: tuple[str, ...]
    system: str = ""


class Workload(Struct, frozen=True, kw_only=True):
    """``concurrency``: sessions at once. ``shared``: tokens that all prompts have in common, besides the salt."""

    name: str
    title: str
    kind: Kind
    sessions: tuple[Session, ...]
    concurrency: int
    max_tokens: int
    ignore_eos: bool = True
    structured: bool = False
    """Answers follow SCHEMA."""
    shared: int = 0

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def digest(self) -> str:
        """The same on two machines if their installed texts and the tokeniser are."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]


def salt(draw: random.Random) -> str:
    return "#" + "".join(draw.choice("123456789") for _ in range(7)) + "\n"


def build(tokenizer: Tokenizer, names: tuple[str, ...] = ()) -> dict[str, Workload]:
    """Workloads by name: all, or those of ``names``. Each is made of words of its own, whichever others are wanted."""
    corpus = words(20_000)
    made = {}
    for index, name in enumerate(NAMES):
        if not names or name in names:
            start = index * len(corpus) // len(NAMES)
            made[name] = _MAKERS[name](Passages(tokenizer, corpus[start:] + corpus[:start]))
    return made


def _single_stream(text: Passages) -> Workload:
    return Workload(
        name="W1",
        title="one stream: 4 prompts of 64 tokens, 128 new each",
        kind="completion",
        sessions=tuple(Session((text.extend("", 64),)) for _ in range(4)),
        concurrency=1,
        max_tokens=128,
    )


def _batch(text: Passages) -> Workload:
    return Workload(
        name="W2",
        title="16 distinct prompts of 128 tokens at once, 64 new each",
        kind="completion",
        sessions=tuple(Session((text.extend("", 128),)) for _ in range(16)),
        concurrency=16,
        max_tokens=64,
    )


def _shared_prefix(text: Passages) -> Workload:
    shared = text.begin("Read the text, then answer the question that follows it.", 1500)
    return Workload(
        name="W3",
        title="64 requests, 16 at a time, sharing 1,500 tokens, 30 of their own, 16 new",
        kind="completion",
        sessions=tuple(Session((text.extend(shared, 30, "\nAnswer:"),)) for _ in range(64)),
        concurrency=16,
        max_tokens=16,
        shared=1500,
    )


def _conversations(text: Passages) -> Workload:
    return Workload(
        name="W4",
        title="8 conversations of 6 turns over chat, history sent again, 32 new a turn",
        kind="chat",
        sessions=tuple(
            Session(system=text.extend("", 72), turns=tuple(text.begin("Say in other words:", 20) for _ in range(6)))
            for _ in range(8)
        ),
        concurrency=8,
        max_tokens=32,
    )


def _tree(text: Passages) -> Workload:
    root = text.extend("", 800)
    branches = [text.extend(root, 150) for _ in range(4)]
    return Workload(
        name="W5",
        title="a tree: 800 tokens, 4 branches of 150, 4 leaves of 50 each, 16 new, all at once",
        kind="completion",
        sessions=tuple(Session((text.extend(branch, 50),)) for branch in branches for _ in range(4)),
        concurrency=16,
        max_tokens=16,
        shared=800,
    )


def _records(text: Passages) -> Workload:
    task = (
        "You describe pieces of text. Answer with one JSON object that has the keys subject, tone, clarity, "
        "names_a_person, share_of_prose and keywords, and with nothing else. Texts of the kind to expect:"
    )
    system = text.begin(task, 400)
    return Workload(
        name="W6",
        title="32 chats sharing 400 tokens, 16 at a time, a JSON schema of 6 fields, at most 128 new",
        kind="chat",
        sessions=tuple(Session(system=system, turns=(text.extend("", 40),)) for _ in range(32)),
        concurrency=16,
        max_tokens=128,
        ignore_eos=False,
        structured=True,
        shared=400,
    )


_MAKERS: dict[str, Callable[[Passages], Workload]] = {
    "W1": _single_stream,
    "W2": _batch,
    "W3": _shared_prefix,
    "W4": _conversations,
    "W5": _tree,
    "W6": _records,
}
NAMES = tuple(_MAKERS)
