"""Chat templates: one source for the server and the DSL, out of the model's own files.

A template is a program of the model's author, so it runs in Jinja2's sandbox. The DSL builds conversations piece by
piece and cannot call it again for each piece; ``fragments`` takes it apart and proves the parts against the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TypeAlias

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from ramet.runtime.frontend.fragments import RoleFragments, derive
from ramet.runtime.frontend.tools import plain_messages
from ramet.runtime.protocol.errors import InvalidRequest
from ramet.runtime.store import ModelMeta
from ramet.runtime.tokenizer import Follows, Tokenizer

Message: TypeAlias = Mapping[str, object]

_PLACEHOLDERS = 0xF0000  # private use plane 15: stands for special tokens that users wrote


class _GenerationBlock(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``: marks what the model wrote; rendering leaves it as it is."""

    tags = {"generation"}  # noqa: RUF012 (the library's own protocol)

    def parse(self, parser):  # type: ignore[no-untyped-def]
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(Exception):
    pass


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _tojson(value: object, indent: int | None = None, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys)


class ChatTemplate:
    """Renders conversations for one model.

    ``now`` is the clock behind the template helper ``strftime_now``.
    """

    def __init__(
        self, meta: ModelMeta, tokenizer: Tokenizer | None = None, *, now: Callable[[], datetime] = datetime.now
    ) -> None:
        """Raises InvalidRequest if the model has no template or it is not valid Jinja2."""
        if not meta.chat_template:
            raise InvalidRequest(
                f"the model {meta.name} has no chat template: it is a base model. Use plain completions instead.",
                code="no_chat_template",
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(meta.chat_template)
        except TemplateError as error:
            raise InvalidRequest(f"the chat template of {meta.name} is not valid Jinja2: {error}") from error
        self._meta = meta
        self._tokenizer = tokenizer

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str:
        """The conversation as text. ``messages``: role and content each, as in the OpenAI API (content a string, a list
        of text parts, or None beside tool_calls). ``variables`` are further names for the template.

        A template that knows nothing of tools gets them in plain words in the system text (see ``tools.py``).
        Raises InvalidRequest where a message is malformed or the template refuses the conversation.
        """
        prepared = [_prepared(message, index) for index, message in enumerate(messages)]
        if not prepared:
            raise InvalidRequest("messages is empty; at least one message is needed.", param="messages")
        if not self.supports_tools:
            prepared = plain_messages(prepared, tools, self.default_system, has_system=not tools or self._has_system)
            tools = None
        return self._render(prepared, add_generation_prompt, tools, **variables)

    def ids(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        *,
        check: Callable[[str], None] = lambda _: None,
        **variables: object,
    ) -> list[int]:
        """Ids of ``render``'s text. Control tokens of the template become their ids; the same letters inside a message
        stay ordinary text, so no message can end a turn or open another one. ``check``: sees the whole text
        first, and may refuse it."""
        if self._tokenizer is None:
            raise TypeError("ChatTemplate was made without a tokenizer; pass one to use ids()")
        special = self._tokenizer.special_tokens
        texts = "".join(_all_texts(list(messages)))
        written = [token for token in special if token in texts]
        if not written:
            text = self.render(messages, add_generation_prompt, tools, **variables)
            check(text)
            return self._tokenizer.encode(text, special=True)
        stand_in = {token: chr(_PLACEHOLDERS + index) for index, token in enumerate(written)}
        if any(char in texts for char in stand_in.values()):
            raise InvalidRequest("a message holds both control tokens and private-use characters.", param="messages")
        hidden = [_replaced(message, stand_in) for message in messages]
        text = self.render([m for m in hidden if isinstance(m, Mapping)], add_generation_prompt, tools, **variables)
        check(text)
        ids: list[int] = []
        follows: Follows = "nothing"
        back = {char: token for token, char in stand_in.items()}
        for piece in re.split(f"({'|'.join(map(re.escape, sorted(special, key=len, reverse=True)))})", text):
            if piece in special:
                ids.append(special[piece])
                follows = "special"
            elif piece:
                literal = re.sub(f"[{''.join(back)}]", lambda match: back[match[0]], piece)
                ids += self._tokenizer.encode(literal, follows=follows)
                follows = "text"
        return ids

    @cached_property
    def supports_tools(self) -> bool:
        """The template renders tool definitions itself."""
        probe = {"type": "function", "function": {"name": "probe_tool", "description": "x", "parameters": {}}}
        try:
            return "probe_tool" in self._render([{"role": "user", "content": "x"}], True, [probe])
        except InvalidRequest:
            return False

    @cached_property
    def _has_system(self) -> bool:
        """The template takes a system message in front of the user's."""
        try:
            self._render([{"role": "system", "content": "x"}, {"role": "user", "content": "x"}], True, None)
        except InvalidRequest:
            return False
        return True

    @cached_property
    def default_system(self) -> str:
        """System text that the template adds where the conversation brings none, "" if it adds none."""
        mark = "\ue000system\ue000"
        user = {"role": "user", "content": "\ue001"}
        try:
            with_system = self._render([{"role": "system", "content": mark}, user], False, None)
            without = self._render([user], False, None)
        except InvalidRequest:
            return ""
        before, found, after = with_system.partition(mark)
        if not found or not without.startswith(before) or not without.endswith(after):
            return ""
        return without[len(before) : len(without) - len(after)]

    @cached_property
    def fragments(self) -> RoleFragments:
        """The template taken apart by roles. Raises InvalidRequest if it cannot be (see ``fragments.py``)."""
        return derive(lambda m, prompt: self._render(m, prompt, None), self._meta.name, self._meta.bos_token)

    def role_text(self, role: str, first: bool = False) -> tuple[str, str]:
        """(text before, text after) the content of a message of ``role``; see ``RoleFragments``."""
        return self.fragments.begin(role, first), self.fragments.end(role)

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None,
        **variables: object,
    ) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                bos_token=self._meta.bos_token,
                eos_token=self._meta.eos_token,
                **{"documents": None, **variables},
            )
        except (TemplateError, _Refused) as error:
            raise InvalidRequest(
                f"the chat template of {self._meta.name} refuses this conversation: {error}", param="messages"
            ) from error
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise InvalidRequest(
                f"the chat template of {self._meta.name} cannot render this conversation: {error}", param="messages"
            ) from error


def _prepared(message: Message, index: int) -> dict[str, object]:
    """A message with string content, other fields as they are."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"messages[{index}] has no role.", param=f"messages[{index}].role")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = "".join(_part(part, index) for part in content) if isinstance(content, Sequence) else None
    if content is None:
        raise InvalidRequest(f"messages[{index}].content must be text or a list of text parts.", param="messages")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, (list, tuple)) and all(isinstance(c, Mapping) for c in calls)):
        raise InvalidRequest(
            f"messages[{index}].tool_calls must be a list of objects with function.name and function.arguments.",
            param=f"messages[{index}].tool_calls",
        )
    return {**message, "content": content}


def _part(part: object, index: int) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise InvalidRequest(
            f'messages[{index}].content: a part is not {{"type": "text", "text": ...}}; only text is supported.',
            param=f"messages[{index}].content",
        )
    return text


def _all_texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _all_texts(item)]
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [text for item in value for text in _all_texts(item)]
    return []


def _replaced(value: object, stand_in: Mapping[str, str]) -> object:
    if isinstance(value, str):
        for token, char in stand_in.items():
            value = value.replace(token, char)
        return value
    if isinstance(value, Mapping):
        return {key: _replaced(item, stand_in) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_replaced(item, stand_in) for item in value]
    return value
