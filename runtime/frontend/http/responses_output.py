"""What POST /v1/responses answers: items that grow, told as events or as a whole."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from ramet.runtime.protocol.messages import Usage

from .responses_input import ResponsesBody
from .server import new_id, usage_json


@dataclass
class _Item:
    """``logprobs``: of a message's text."""

    at: int
    kind: Literal["message", "call", "reasoning"]
    id: str
    name: str = ""
    call_id: str = ""
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def json(self, status: str) -> dict[str, Any]:
        if self.kind == "reasoning":
            thoughts = [] if status == "in_progress" else [{"type": "reasoning_text", "text": self.text}]
            return {"type": "reasoning", "id": self.id, "summary": [], "content": thoughts, "status": status}
        if self.kind == "call":
            return {
                "type": "function_call",
                "id": self.id,
                "call_id": self.call_id,
                "name": self.name,
                "arguments": self.text,
                "status": status,
            }
        content = [] if status == "in_progress" else [self.part()]
        return {"type": "message", "id": self.id, "role": "assistant", "status": status, "content": content}

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}


class Output:
    """One answer. The methods yield its events, numbered; ``whole`` is the answer as it stands."""

    def __init__(self, body: ResponsesBody, created: int) -> None:
        self._body = body
        self._created = created
        self._id = new_id("resp_")
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._number = 0
        self._thought = 0

    def begin(self) -> Iterator[bytes]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self.whole("in_progress"))

    def thought(self, text: str) -> Iterator[bytes]:
        """More of what is thought before the answer."""
        item = self._open or (yield from self._add(_Item(len(self._items), "reasoning", new_id("rs_"))))
        item.text += text
        yield self._of(item, "response.reasoning_text.delta", delta=text, content_index=0)

    def text(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> Iterator[bytes]:
        """More of the message; begins one where none is open."""
        item = self._open
        if item is None or item.kind != "message":
            yield from self._close("completed")
            item = yield from self._add(_Item(len(self._items), "message", new_id("msg_")))
            yield self._of(item, "response.content_part.added", part={**item.part(), "logprobs": []}, content_index=0)
        item.text += text
        item.logprobs.extend(logprobs)
        yield self._of(item, "response.output_text.delta", delta=text, logprobs=list(logprobs), content_index=0)

    def call(self, call_id: str, name: str) -> Iterator[bytes]:
        """A call begins."""
        yield from self._close("completed")
        yield from self._add(_Item(len(self._items), "call", new_id("fc_"), name, call_id))

    def arguments(self, text: str) -> Iterator[bytes]:
        """More of the open call's arguments."""
        item = self._open
        if item is not None and text:
            item.text += text
            yield self._of(item, "response.function_call_arguments.delta", delta=text)

    def end(self, reason: str, usages: Sequence[Usage], thought: int = 0) -> Iterator[bytes]:
        """``reason``: length, or another. ``thought``: tokens of thoughts."""
        self._thought = thought
        status = "incomplete" if reason == "length" else "completed"
        if not self._items:
            yield from self.text("")
        yield from self._close(status)
        yield self._event(f"response.{status}", response=self.whole(status, usages))

    def fail(self, error: dict[str, Any]) -> Iterator[bytes]:
        """``error``: the object of the API."""
        whole = self.whole("failed")
        whole["error"] = {"code": "server_error", "message": error["message"]}
        yield self._event("error", message=error["message"], code=error["code"], param=error["param"])
        yield self._event("response.failed", response=whole)

    def whole(self, status: str, usages: Sequence[Usage] | None = None) -> dict[str, Any]:
        body = self._body
        given = body.text.format if body.text is not None else None
        form = {"type": "text"} if given is None else given.model_dump(by_alias=True, exclude_unset=True)
        choice = body.tool_choice
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": body.model,
            "output": [item.json("completed" if item is not self._open else status) for item in self._items],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": form},
            "tool_choice": "auto" if choice is None else choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [{"strict": None, "parameters": None, **tool.model_dump()} for tool in body.tools or ()],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None if usages is None else _usage(usages, self._thought),
            "user": body.user,
            "metadata": body.metadata or {},
        }

    def _add(self, item: _Item) -> Generator[bytes, None, _Item]:
        self._items.append(item)
        self._open = item
        yield self._event("response.output_item.added", output_index=item.at, item=item.json("in_progress"))
        return item

    def _close(self, status: str) -> Iterator[bytes]:
        item, self._open = self._open, None
        if item is None:
            return
        if item.kind == "reasoning":
            yield self._of(item, "response.reasoning_text.done", text=item.text, content_index=0)
        elif item.kind == "call":
            yield self._of(item, "response.function_call_arguments.done", arguments=item.text, name=item.name)
        else:
            done = {"text": item.text, "logprobs": item.logprobs}
            yield self._of(item, "response.output_text.done", content_index=0, **done)
            yield self._of(item, "response.content_part.done", content_index=0, part=item.part())
        yield self._event("response.output_item.done", output_index=item.at, item=item.json(status))

    def _of(self, item: _Item, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=item.id, output_index=item.at, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(data))


def _usage(usages: Sequence[Usage], thought: int) -> dict[str, Any]:
    counted = usage_json(usages, thought)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {**counted["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": counted["completion_tokens_details"],
        "total_tokens": counted["total_tokens"],
    }
