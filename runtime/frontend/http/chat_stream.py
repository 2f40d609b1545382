"""Deltas of one streamed chat choice, as JSON bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from ramet.runtime.frontend.holdback import Holdback, stops_of

from .chat_call import ChatCall
from .reasoning import Thought
from .tool_text import OPEN_TAG, CallArray, ToolPlan, call_id, calls_of_text


def text_stream(text: str) -> bytes:
    return b'{"content":' + orjson.dumps(text) + b"}"


def _call_delta(index: int, name: str, arguments: str) -> bytes:
    """``name`` set: the first delta of the call, which alone has its id, type and name."""
    function: dict[str, Any] = {"arguments": arguments}
    call: dict[str, Any] = {"index": index, "function": function}
    if name:
        function["name"] = name
        call.update(id=call_id(), type="function")
    return orjson.dumps({"tool_calls": [call]})


_OPENING = stops_of([OPEN_TAG.encode()])


class ToolStream:
    """Text of a choice with tools turned into deltas. In mode auto, text that may open a call is held back; calls are
    sent whole when the choice ends."""

    def __init__(self, plan: ToolPlan) -> None:
        self._plan = plan
        self._array = CallArray()
        self._names = frozenset(tool["function"]["name"] for tool in plan.tools)
        self._holdback = Holdback(_OPENING)
        self._text = ""
        self._open = False
        self.called = False

    def feed(self, text: str, *, last: bool) -> list[bytes]:
        if self._plan.mode == "auto":
            return self._auto(text, last)
        deltas: list[bytes] = []
        if self._plan.mode == "named":
            if not self.called:
                self.called = True
                deltas.append(_call_delta(0, self._plan.name, ""))
            if text:
                deltas.append(_call_delta(0, "", text))
            return deltas
        for piece in self._array.feed(text):
            self.called = True
            deltas.append(_call_delta(piece.index, piece.name, piece.arguments))
        return deltas

    def _auto(self, text: str, last: bool) -> list[bytes]:
        deltas: list[bytes] = []
        if not self._open:
            # The tag is ASCII, so what is released never ends inside a character.
            free = self._holdback.feed(text.encode()).decode()
            if free:
                deltas.append(text_stream(free))
            held = self._holdback.held.decode()
            self._open = OPEN_TAG in held
            self._text = held
        else:
            self._text += text
        if last and self._text:
            content, calls = calls_of_text(self._text, self._names)
            self.called = bool(calls)
            if content:
                deltas.append(text_stream(content))
            for index, call in enumerate(calls):
                deltas.append(_call_delta(index, call.name, call.arguments))
        return deltas


@dataclass(frozen=True)
class ChoiceStream:
    """What reads the text of one choice: thoughts are told apart first, then calls."""

    tools: ToolStream | None
    thought: Thought | None
    shown: bool

    @staticmethod
    def of(call: ChatCall) -> ChoiceStream:
        tools = None if call.tools.mode == "none" else ToolStream(call.tools)
        if call.reasoning is None:
            return ChoiceStream(tools, None, False)
        return ChoiceStream(tools, Thought(call.reasoning.inside), call.reasoning.shown)

    def deltas(self, text: str, *, last: bool, always: bool) -> list[bytes]:
        """``always``: one at least, which carries what else is to be said."""
        deltas: list[bytes] = []
        if self.thought is not None:
            thought, text = self.thought.feed(text, last=last)
            if thought and self.shown:
                deltas.append(b'{"reasoning_content":' + orjson.dumps(thought) + b"}")
        if self.tools is not None:
            deltas += self.tools.feed(text, last=last)
        elif text or (always and not deltas):
            deltas.append(text_stream(text))
        return deltas

    @property
    def called(self) -> bool:
        return self.tools is not None and self.tools.called
