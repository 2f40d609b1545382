"""A chat template taken apart into texts before and after each role's content.

    prefix  begin(role 0, first)  content 0  end(role 0)  begin(role 1)  content 1  end(role 1) ...

The parts are found by rendering conversations whose contents are sentinels, and proven on others: concatenation must
give the template's own text for each. A template that rewrites earlier turns, or whose text between two turns depends
on more than their roles, fails the proof, and the error says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ramet.runtime.protocol.errors import InvalidRequest

Render = Callable[[Sequence[Mapping[str, object]], bool], str]
"""(messages, add_generation_prompt) to text; raises InvalidRequest where the template refuses."""

_PROOFS = (
    "u",
    "s",
    "ua",
    "su",
    "sua",
    "uau",
    "suau",
    "uaua",
    "suaua",
    "uauauau",
    "suauauaua",
)
_CONTENTS: tuple[Callable[[int], str], ...] = (
    lambda index: f"text {index}",
    lambda index: f" Line {index}\nand *more*  {index}\n",
    lambda index: f"<think>\nplan {index}\n</think>\n\nanswer {index}",  # some templates drop what was thought
)
_ROLE_OF = {"s": "system", "u": "user", "a": "assistant"}


@dataclass(frozen=True)
class RoleFragments:
    """``prefix`` stands in front of everything (a begin-of-text token, say). ``trims``: the template strips blanks at
    both ends of each content, and whoever uses the fragments must do the same. ``firsts``: roles that may open a
    conversation; what a template adds to one that has no system message is in the first ``begin``."""

    prefix: str
    trims: bool
    firsts: Mapping[str, str]
    begins: Mapping[str, str]
    ends: Mapping[str, str]
    generation: str
    """The text after which the assistant is to write; begin("assistant") in most templates."""

    def begin(self, role: str, first: bool = False) -> str:
        """Raises InvalidRequest for a role that the template refuses (there)."""
        table = self.firsts if first else self.begins
        if role not in table:
            where = "open a conversation" if first else "follow another message"
            raise InvalidRequest(
                f"in this model's chat template a {role!r} message cannot {where}; possible: {', '.join(table)}."
            )
        return table[role]

    def end(self, role: str) -> str:
        if role not in self.ends:
            raise InvalidRequest(f"this model's chat template has no role {role!r}; it has: {', '.join(self.ends)}.")
        return self.ends[role]

    def join(self, messages: Sequence[tuple[str, str]], add_generation_prompt: bool = False) -> str:
        """What the template renders for (role, content) pairs."""
        parts = [self.prefix]
        for index, (role, content) in enumerate(messages):
            parts += [self.begin(role, index == 0), content.strip() if self.trims else content, self.end(role)]
        return "".join(parts) + (self.generation if add_generation_prompt else "")


def _conversation(letters: str, content: Callable[[int], str]) -> list[tuple[str, str]]:
    return [(_ROLE_OF[letter], content(index)) for index, letter in enumerate(letters)]


def _rendered(render: Render, pairs: Sequence[tuple[str, str]], prompt: bool = False) -> str | None:
    try:
        return render([{"role": role, "content": content} for role, content in pairs], prompt)
    except InvalidRequest:
        return None


def derive(render: Render, name: str, bos: str) -> RoleFragments:
    """The fragments of the template behind ``render``. Raises InvalidRequest if it cannot be taken apart.

    ``bos``: the model's begin-of-text token, which becomes the prefix where every conversation begins with it.
    """

    def refuse(reason: str) -> InvalidRequest:
        return InvalidRequest(
            f"the chat template of {name} cannot be taken apart into roles: {reason}. Programs that build a "
            "conversation piece by piece need that; the chat API, which renders whole conversations, works.",
            code="template_not_divisible",
        )

    def mark(index: int) -> str:
        return f"\ue000{index}\ue001"

    def pieces(letters: str) -> list[str] | None:
        """Texts around the sentinels of a conversation: len(letters) + 1 of them; None where the template refuses."""
        text = _rendered(render, _conversation(letters, mark))
        if text is None:
            return None
        found = []
        for index in range(len(letters)):
            before, sentinel, text = text.partition(mark(index))
            if not sentinel:
                raise refuse(f"a {_ROLE_OF[letters[index]]} message's content is not in its text once and in order")
            found.append(before)
        return [*found, text]

    begins: dict[str, str] = {}
    ends: dict[str, str] = {}
    firsts: dict[str, str] = {}
    opening = pieces("u")
    if opening is None:
        raise refuse("it refuses a conversation of one user message")
    firsts["user"], ends["user"] = opening
    # (conversation, role of its last message, role before): the text between the two is end(before) + begin(last)
    for letters in ("ua", "uau", "s", "su", "uas"):
        try:
            found = pieces(letters)
        except InvalidRequest:
            if letters != "s":
                raise
            continue  # a system message alone is not rendered; "su" then fails the proof, or is refused
        if found is None:
            continue
        last = _ROLE_OF[letters[-1]]
        ends.setdefault(last, found[-1])
        if len(letters) == 1:
            firsts[last] = found[0]
            continue
        before = ends.get(_ROLE_OF[letters[-2]])
        if before is None or not found[-2].startswith(before):
            raise refuse(f"the end of a {_ROLE_OF[letters[-2]]} message changes when a {last} message follows")
        begins.setdefault(last, found[-2][len(before) :])
    blank = _rendered(render, [("user", f"  {mark(0)}  ")])
    trims = blank == opening[0] + mark(0) + opening[1]
    prompted = _rendered(render, _conversation("u", mark), True)
    plain = _rendered(render, _conversation("u", mark))
    if prompted is None or plain is None or not prompted.startswith(plain):
        raise refuse("its generation prompt changes the text in front of it")
    opens = all(text.startswith(bos) for text in firsts.values())
    prefix = bos if opens and not any(text.startswith(bos) for text in begins.values()) else ""
    firsts = {role: text[len(prefix) :] for role, text in firsts.items()}
    fragments = RoleFragments(prefix, trims, firsts, begins, ends, prompted[len(plain) :])
    for letters in _PROOFS:
        for content in _CONTENTS:
            pairs = _conversation(letters, content)
            for prompt in (False, True):
                expected = _rendered(render, pairs, prompt)
                if expected is None:
                    continue
                try:
                    actual = fragments.join(pairs, prompt)
                except InvalidRequest as error:
                    raise refuse(str(error)) from error
                if actual != expected:
                    raise refuse(
                        f"a conversation of {', '.join(role for role, _ in pairs)} is not the sum of its parts"
                    )
    return fragments
