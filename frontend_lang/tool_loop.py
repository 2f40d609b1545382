"""A `gen` with tools: generate, run what was called, show the answers, and again, until the model just answers.

    assistant: text ... <tool_call> {call} </tool_call> ...     the tag stops the text; the call is bound by a grammar
    user:      <tool_response> answer </tool_response>          one message per call, in the order of the calls
    assistant: text                                             no call: this is the value

So a call is well formed and names a tool that there is, whatever the model.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ramet.runtime.protocol.errors import GenerationFailed, InvalidRequest
from ramet.runtime.protocol.messages import Usage

from .backend import Branch, GenCall, Outcome
from .ops import OpenMessage
from .tools import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    CALL_CLOSE,
    CALL_OPEN,
    MAX_CALLS,
    ToolCall,
    ToolRoundsExceeded,
    ToolUse,
)

if TYPE_CHECKING:
    from .core import StateCore

Generate = Callable[[GenCall], Awaitable[Outcome]]


class ToolLoop:
    """``generate``: one generation on the state's branch, accounted for (texts, records)."""

    def __init__(self, core: StateCore, branch: Branch, call: GenCall, use: ToolUse, generate: Generate) -> None:
        if core.open_message is None or core.open_message.role != "assistant":
            raise InvalidRequest(
                "gen(tools=...) stands inside an assistant message: rt.assistant(rt.gen(..., tools=...))"
            )
        missing = [tool.name for tool in use.tools if tool.name not in core.tools]
        if missing:
            raise InvalidRequest(
                f"tool {missing[0]!r} was not shown to the model: give tools= to system(), as in "
                f"rt.system(rules, tools=[{missing[0]}])"
            )
        if call.n > 1:
            raise InvalidRequest("gen(tools=...) makes one text: n must be 1")
        self._core, self._branch, self._call, self._use, self._generate = core, branch, call, use, generate
        self.calls: list[ToolCall] = []
        self.rounds = 0

    async def run(self) -> Outcome:
        """The outcome of the last turn, which calls no tool."""
        while True:
            text, asked = await self._turn(forced=self._use.choice == "required" and self.rounds == 0)
            if not asked:
                return text
            self.rounds += 1
            if self.rounds > self._use.max_rounds:
                names = ", ".join(call.name for call in asked)
                raise ToolRoundsExceeded(
                    f"the model called {names} after max_rounds={self._use.max_rounds} rounds of tools: "
                    "allow more, or ask for an answer in the prompt"
                )
            answered = await self._core.run.answer_tools(self._branch, self._use, asked)
            self.calls += answered
            self._show(answered)

    async def _turn(self, forced: bool) -> tuple[Outcome, list[ToolCall]]:
        """One assistant message: (its text after the last call, calls)."""
        asked: list[ToolCall] = []
        outcome = Outcome("", "stop", Usage())
        while len(asked) < MAX_CALLS:
            if not forced:
                outcome = await self._generate(replace(self._call, stop=(*self._call.stop, CALL_OPEN)))
                if outcome.stop != CALL_OPEN:
                    break
            forced = False
            asked.append(await self._one_call())
        return outcome, asked

    async def _one_call(self) -> ToolCall:
        self._append(f"{CALL_OPEN}\n")
        grammar = self._use.call_grammar()
        outcome = await self._generate(
            replace(
                self._call, stop=(), stop_token_ids=(), min_tokens=0, max_tokens=None, constraint=grammar, logprobs=-1
            )
        )
        if outcome.reason == "length":
            raise GenerationFailed(f"the context ended inside a tool call: {outcome.text!r}")
        self._append(f"\n{CALL_CLOSE}")
        call = json.loads(outcome.text)
        return ToolCall(call["name"], call["arguments"])

    def _show(self, answered: list[ToolCall]) -> None:
        """Close the turn, add an answer per call, and open the next turn."""
        core, branch = self._core, self._branch
        self._close("assistant")
        for call in answered:
            core.log.append(branch.role_begin("user", False))
            core.open_message = OpenMessage("user")
            self._append(f"{ANSWER_OPEN}{call.answer()}{ANSWER_CLOSE}")
            self._close("user")
        core.log.append(branch.role_begin("assistant", False))
        core.open_message = OpenMessage("assistant")

    def _close(self, role: str) -> None:
        core = self._core
        if core.open_message is not None:
            core.messages.append({"role": role, "content": "".join(core.open_message.parts)})
        core.open_message = None
        core.log.append(self._branch.role_end(role))

    def _append(self, text: str) -> None:
        self._branch.append(text)
        self._core.add_text(text)
