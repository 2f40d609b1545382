"""The text around a document: everything that all documents share comes first, so that it is computed once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ramet.extraction.describe import describe
from ramet.extraction.examples import Example
from ramet.extraction.schema import Target
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.tokenizer import Follows

_MARK, _NOTE = "\u2983document\u2984", "\u2983note\u2984"
"""Stand for the document, and for what is said about an earlier answer, while the chat template renders the turns."""

_NOTE_TOKENS = 256
_PRIVATE = 0xE000
"""The first of Unicode's private characters."""


class Template(Protocol):
    def render(self, messages: list[dict[str, object]], add_generation_prompt: bool = True) -> str: ...


class Encoder(Protocol):
    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    def encode(self, text: str, *, special: bool = False, follows: Follows = "nothing") -> list[int]: ...


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


class Frame:
    """Token ids around a document::

        prefix (shared by all) | document | behind [| note] | end (the assistant's turn begins)

    The parts are encoded apart, so that the prefix is the same ids for every document. Document, note, instruction and
    examples are plain text: what looks like a special token in them stays text. ``plain``: characters of the parts that
    stand for such text.
    """

    def __init__(
        self, encoder: Encoder, before: str, behind: str, end: str, plain: Mapping[str, str] | None = None
    ) -> None:
        self._encoder = encoder
        self._plain = plain or {}
        self._behind, self._end = behind, end
        self.prefix = tuple(self._encoded(before))
        self.suffix = tuple(self._encoded(behind + end))

    def _encoded(self, text: str) -> list[int]:
        """Ids of a part of the template's text."""
        special = self._encoder.special_tokens
        if not any(character in text for character in self._plain):
            return self._encoder.encode(text, special=True)
        ids: list[int] = []
        follows: Follows = "nothing"
        for piece in re.split(f"({'|'.join(map(re.escape, sorted(special, key=len, reverse=True)))})", text):
            if piece in special:
                ids.append(special[piece])
                follows = "special"
            elif piece:
                written = "".join(self._plain.get(character, character) for character in piece)
                ids += self._encoder.encode(written, follows=follows)
                follows = "text"
        return ids

    @property
    def size(self) -> int:
        """Tokens beside the document."""
        return len(self.prefix) + len(self.suffix)

    def prompt(self, document: Sequence[int], note: str | None = None) -> list[int]:
        """The whole prompt. ``note``: what was wrong with an earlier answer, said behind the document; all that stands
        in front of it is as in the earlier prompt."""
        if note is None:
            return [*self.prefix, *document, *self.suffix]
        said = self._encoder.encode(f"\n\n{note}")[:_NOTE_TOKENS]
        return [*self.prefix, *document, *self._encoded(self._behind), *said, *self._encoded(self._end)]


def frame(instruction: Instruction, template: Template, encoder: Encoder, examples: Sequence[Example] = ()) -> Frame:
    """Render the turns once: system, examples (a user and an assistant turn each), and the document's own turn."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": instruction.system},
        *_turns(instruction, examples),
        {"role": "user", "content": instruction.before + _MARK + instruction.after + _NOTE},
    ]
    plain = _plain(encoder, "".join(str(message["content"]) for message in messages))
    for message in messages:
        for character, written in plain.items():
            message["content"] = str(message["content"]).replace(written, character)
    before, mark, rest = template.render(messages, add_generation_prompt=True).partition(_MARK)
    behind, note, end = rest.partition(_NOTE)
    if not mark or not note or _MARK in rest or _NOTE in end:
        raise InvalidRequest("the model's chat template does not keep the user's text as it is", param="model")
    return Frame(encoder, before, behind, end, plain)


def _plain(encoder: Encoder, texts: str) -> dict[str, str]:
    """A character for each special token that ``texts`` write, which is to stay text."""
    unused = (chr(code) for code in range(_PRIVATE, _PRIVATE + 6400) if chr(code) not in texts)
    longest_first = sorted(encoder.special_tokens, key=len, reverse=True)
    return {next(unused): token for token in longest_first if token in texts}


def _turns(instruction: Instruction, examples: Sequence[Example]) -> Iterator[dict[str, object]]:
    for example in examples:
        yield {"role": "user", "content": instruction.before + example.text + instruction.after}
        yield {"role": "assistant", "content": example.answer}
