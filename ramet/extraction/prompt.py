"""The text around a document: everything that all documents share comes first, so that it is computed once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ramet.extraction.describe import describe
from ramet.extraction.schema import Target
from ramet.runtime.protocol.errors import InvalidRequest

_MARK = "\u2983document\u2984"
"""Stands for the document while the chat template renders the turns around it."""


class Template(Protocol):
    def render(self, messages: list[dict[str, object]], add_generation_prompt: bool = True) -> str: ...


class Encoder(Protocol):
    def encode(self, text: str, *, special: bool = False) -> list[int]: ...


@dataclass(frozen=True)
class Instruction:
    """``system`` and ``before`` stand in front of the document (shared by all), ``after`` behind it (keep it short)."""

    system: str
    before: str = "Document:\n"
    after: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.system, self.before, self.after]).encode()).hexdigest()


def instruction(target: Target, prompt: str | None = None) -> Instruction:
    """The default instruction: what to do (``prompt``, if given), then each field of the schema and what it means.

    A plain list of fields: worked examples mislead small models, which copy the examples' values.
    """
    task = prompt.strip() if prompt else "Read the document and extract one JSON record from it."
    fields = describe(json.loads(target.text))
    listing = f"\n\nThe record has these fields:\n{fields}" if fields else ""
    rules = "\n\nUse only what the document says. Answer with the JSON record alone."
    return Instruction(system=task + listing + rules, before="Document:\n", after="\n\nExtract the JSON record.")


@dataclass(frozen=True)
class Frame:
    """Token ids around a document: ``prefix + document + suffix`` is the whole prompt."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.prefix) + len(self.suffix)


def frame(
    instruction: Instruction,
    template: Template,
    encoder: Encoder,
    *,
    turns: Sequence[Mapping[str, object]] = (),
) -> Frame:
    """Render the turns once and encode them in two parts, so that the prefix is the same ids for every document.

    turns: messages between the system turn and the document's (examples). A document is encoded apart, as plain text:
    what looks like a special token in it stays text.
    """
    messages: list[dict[str, object]] = [
        {"role": "system", "content": instruction.system},
        *(dict(turn) for turn in turns),
        {"role": "user", "content": instruction.before + _MARK + instruction.after},
    ]
    before, mark, after = template.render(messages, add_generation_prompt=True).partition(_MARK)
    if not mark or _MARK in after:
        raise InvalidRequest("the model's chat template does not keep the user's text as it is", param="model")
    return Frame(tuple(encoder.encode(before, special=True)), tuple(encoder.encode(after, special=True)))
