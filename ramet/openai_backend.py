"""`OpenAI`: programs on any service that speaks OpenAI's API, through its official client.

Such a service takes messages or text, not ids: a branch is a conversation here, nothing is kept, and `select`, which
needs the log-probabilities of given text, is refused. A chat service cannot go on with a message that it began: text in
front of a `gen` in the same assistant message is refused, unless the service takes ``continue_final_message`` (ramet,
vLLM, SGLang), or the program was made with ``@function(num_api_spec_tokens=N)``: then one call asks for N tokens, and
the program's later texts and gens are matched against what came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramet.frontend_lang.backend import Branch, Delta, GenCall, Outcome, Scores
from ramet.frontend_lang.loop import LoopThread
from ramet.runtime.protocol.errors import (
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    UnsupportedConstraint,
)
from ramet.runtime.protocol.messages import ConstraintSpec, Usage

if TYPE_CHECKING:
    import openai

_FOREIGN = {"regex": "regex", "lark": "grammar", "gbnf": "ebnf"}
"""Constraints that OpenAI does not know, and the field of servers that do."""


@dataclass
class TokenUsage:
    """What the service counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def reset(self) -> None:
        self.prompt_tokens = self.completion_tokens = 0


class OpenAI:
    """``model`` on the service at ``base_url`` (OpenAI's own by default). ``is_chat``: messages (default), or plain
    text by ``/v1/completions``. ``extensions``: the service takes ramet's own fields (default: if a base_url is given).
    Other options go to ``openai.AsyncOpenAI``. Raises ImportError without the package ``openai``."""

    backend: OpenAIBackend

    def __init__(
        self,
        model: str,
        *,
        is_chat: bool = True,
        base_url: str | None = None,
        api_key: str | None = None,
        extensions: bool | None = None,
        **options: Any,
    ) -> None:
        try:
            import openai
        except ImportError:
            raise ImportError("ramet.OpenAI needs the official client: pip install openai") from None
        loop = LoopThread("ramet-openai")
        key = api_key if api_key is not None or base_url is None else "none"
        client = openai.AsyncOpenAI(base_url=base_url, api_key=key, **options)
        own = base_url is not None if extensions is None else extensions
        self.backend = OpenAIBackend(loop, client, model, is_chat, own)

    @property
    def token_usage(self) -> TokenUsage:
        return self.backend.token_usage

    def close(self) -> None:
        self.backend.close()


class OpenAIBackend:
    """See ``ramet.frontend_lang.backend``."""

    default_system: str | None = None

    def __init__(
        self, loop: LoopThread, client: openai.AsyncOpenAI, model: str, is_chat: bool, extensions: bool
    ) -> None:
        self.loop = loop
        self.client = client
        self.model = model
        self.is_chat = is_chat
        self.extensions = extensions
        self.token_usage = TokenUsage()

    def open(self, path: tuple[int, ...] = ()) -> Branch:
        return OpenAIBranch(self, path)

    def tools_text(self, tools: Sequence[Mapping[str, object]]) -> str:
        raise InvalidRequest("tools need a model whose calls can be bound: use ramet.Engine or ramet.RuntimeEndpoint")

    def role_stops(self) -> tuple[str, ...]:
        return ()

    async def flush_cache(self) -> None:
        raise InvalidRequest("a service behind OpenAI's API has no cache that one could flush")

    async def server_info(self) -> dict[str, object]:
        used = self.token_usage
        return {"model": self.model, "prompt_tokens": used.prompt_tokens, "completion_tokens": used.completion_tokens}

    def close(self) -> None:
        if not self.loop.closed:
            self.loop.wait(self.client.close())
            self.loop.close()


class OpenAIBranch:
    """One conversation, or one text."""

    def __init__(self, backend: OpenAIBackend, path: tuple[int, ...]) -> None:
        self.path = path
        self._backend = backend
        self._text = ""
        self._messages: list[dict[str, str]] = []
        self._role: str | None = None
        self._content = ""
        self._ahead = ""
        """Text that the service wrote beyond what the program has asked for."""
        self._forked_at = 0

    # ------------------------------------------------------------ text

    def append(self, text: str) -> None:
        self._ahead = self._ahead[len(text) :] if self._ahead.startswith(text) else ""
        self._add(text)

    def _add(self, text: str) -> None:
        self._text += text
        self._content += text

    def role_begin(self, role: str, first: bool) -> str:
        self._role, self._content, self._ahead = role, "", ""
        opening = f"{role}: "
        self._text += opening
        return opening

    def role_end(self, role: str) -> str:
        self._messages.append({"role": role, "content": self._content})
        self._role, self._content, self._ahead = None, "", ""
        self._text += "\n"
        return "\n"

    # ------------------------------------------------------------ generating

    async def generate(self, call: GenCall, keep: bool, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        if call.spec_tokens and self._ahead and call.n == 1:
            found = _until_stop(self._ahead, call.stop)
            if found is not None:
                text, stop = found
                on_delta(Delta(0, text))
                self.append(text)
                return [Outcome(text, "stop", Usage(), stop=stop)]
        asked = _ahead_of(call) if call.spec_tokens and call.n == 1 else call
        outcomes = await self._ask(asked, on_delta if asked is call else _silent)
        if asked is not call:
            outcomes = [self._first_part(outcomes[0], call)]
            on_delta(Delta(0, outcomes[0].text))
        self._add(outcomes[0].text)
        return outcomes

    def _first_part(self, outcome: Outcome, call: GenCall) -> Outcome:
        found = _until_stop(outcome.text, call.stop)
        if found is None:
            self._ahead = ""
            return outcome
        text, stop = found
        self._ahead = outcome.text[len(text) :]
        return Outcome(text, "stop", outcome.usage, stop=stop)

    async def _ask(self, call: GenCall, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        import openai

        try:
            return await self._stream(call, on_delta)
        except openai.RateLimitError as error:
            raise Overloaded(str(error)) from error
        except openai.APITimeoutError as error:
            raise RequestTimeout(str(error)) from error
        except openai.BadRequestError as error:
            raise InvalidRequest(str(error), code=str(error.code or "invalid_value")) from error
        except openai.OpenAIError as error:
            raise GenerationFailed(f"{type(error).__name__}: {error}") from error

    async def _stream(self, call: GenCall, on_delta: Callable[[Delta], None]) -> list[Outcome]:
        backend = self._backend
        request = self._request(call)
        texts, reasons = [""] * call.n, ["stop"] * call.n
        usage = Usage()
        create: Any = backend.client.chat.completions.create if backend.is_chat else backend.client.completions.create
        stream = await create(model=backend.model, stream=True, stream_options={"include_usage": True}, **request)
        async with stream:
            async for event in stream:
                if event.usage is not None:
                    usage = self._count(event.usage)
                for choice in event.choices:
                    piece = (choice.delta.content if backend.is_chat else choice.text) or ""
                    texts[choice.index] += piece
                    if choice.finish_reason:
                        reasons[choice.index] = "length" if choice.finish_reason == "length" else "stop"
                    if piece:
                        on_delta(Delta(choice.index, piece))
        return [Outcome(text, reason, usage) for text, reason in zip(texts, reasons, strict=True)]

    def _count(self, given: Any) -> Usage:
        details = getattr(given, "prompt_tokens_details", None)
        cached = getattr(details, "cached_tokens", None) or 0
        self._backend.token_usage.prompt_tokens += given.prompt_tokens
        self._backend.token_usage.completion_tokens += given.completion_tokens
        prompt, completion = given.prompt_tokens, given.completion_tokens
        return Usage(prompt, cached, prompt - cached, completion, 0, completion)

    def _request(self, call: GenCall) -> dict[str, Any]:
        """Only what differs from the service's own defaults."""
        extra: dict[str, Any] = {}
        request: dict[str, Any] = {"temperature": call.temperature, "n": call.n}
        if call.top_p != 1.0:
            request["top_p"] = call.top_p
        for name in ("frequency_penalty", "presence_penalty"):
            if getattr(call, name):
                request[name] = getattr(call, name)
        if call.stop:
            request["stop"] = list(call.stop)
        if call.logit_bias:
            request["logit_bias"] = {str(token): bias for token, bias in call.logit_bias}
        if call.seed is not None:
            request["seed"] = call.seed
        if call.max_tokens is not None:
            new = self._backend.is_chat and not self._backend.extensions
            request["max_completion_tokens" if new else "max_tokens"] = call.max_tokens
        for name, default in (("top_k", -1), ("min_p", 0.0), ("repetition_penalty", 1.0), ("min_tokens", 0)):
            if getattr(call, name) != default:
                extra[name] = getattr(call, name)
        if call.ignore_eos:
            extra["ignore_eos"] = True
        if call.stop_token_ids:
            extra["stop_token_ids"] = list(call.stop_token_ids)
        if call.stop_regex:
            raise InvalidRequest("OpenAI's API has no stop_regex: use stop= (strings)")
        if call.logprobs >= 0 or call.prompt_logprobs_from >= 0:
            raise InvalidRequest(
                "log-probabilities by ids are not given by OpenAI's API: use Engine or RuntimeEndpoint"
            )
        if call.constraint is not None:
            self._bind(call.constraint, request, extra)
        if self._backend.is_chat:
            request["messages"] = self._conversation(extra)
        else:
            request["prompt"] = self._text
        if extra:
            if not self._backend.extensions:
                raise InvalidRequest(f"OpenAI's API has no {', '.join(extra)}; leave it out, or give extensions=True")
            request["extra_body"] = extra
        return request

    def _bind(self, spec: ConstraintSpec, request: dict[str, Any], extra: dict[str, Any]) -> None:
        if spec.kind == "json_schema" and self._backend.is_chat:
            schema = {"name": "answer", "schema": json.loads(spec.text), "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif spec.kind in _FOREIGN and self._backend.extensions:
            extra[_FOREIGN[spec.kind]] = spec.text
        elif spec.kind == "json_schema" and self._backend.extensions:
            extra["guided_json"] = json.loads(spec.text)
        else:
            raise UnsupportedConstraint(f"OpenAI's API does not enforce a {spec.kind}", keyword=spec.kind)

    def _conversation(self, extra: dict[str, Any]) -> list[dict[str, str]]:
        if self._role is None and not self._messages and self._text:
            return [{"role": "user", "content": self._text}]  # plain text, for a model that only chats
        if self._role != "assistant":
            raise InvalidRequest("a chat service answers in an assistant message: rt.assistant(rt.gen(...))")
        if not self._content:
            return self._messages
        if self._backend.extensions:
            extra |= {"continue_final_message": True, "add_generation_prompt": False}
            return [*self._messages, {"role": "assistant", "content": self._content}]
        raise InvalidRequest(
            "a chat service cannot go on with a message that it began: let one gen write the whole message, or make "
            "the program with @function(num_api_spec_tokens=N)"
        )

    # ------------------------------------------------------------ the rest

    async def score(self, choices: Sequence[str], unconditional: bool, call: GenCall) -> Scores:
        raise InvalidRequest(
            "select needs the log-probabilities of given text, which OpenAI's API does not give: use "
            "gen(schema=...) with an enum, or ramet.Engine / ramet.RuntimeEndpoint"
        )

    def take(self, scores: Scores, choice: int, text: str) -> None:
        self.append(text)

    def fork(self, path: tuple[int, ...]) -> OpenAIBranch:
        child = OpenAIBranch(self._backend, path)
        child._text, child._messages, child._role = self._text, list(self._messages), self._role
        child._content, child._forked_at = self._content, len(self._text)
        return child

    async def append_since_fork(self, child: Branch) -> str:
        if not isinstance(child, OpenAIBranch):
            raise TypeError("only branches of the same backend can be concatenated")
        text = child._text[child._forked_at :]
        self.append(text)
        return text

    def close(self) -> None:
        return

    async def token_ids(self) -> Sequence[int]:
        return ()

    def snippet(self, start: int, stop: int) -> str:
        return ""

    def pieces(self, outcome: Outcome) -> tuple[tuple[str, bool], ...]:
        return ((outcome.text, False),)


def _silent(_: Delta) -> None:
    return


def _ahead_of(call: GenCall) -> GenCall:
    return replace(call, stop=(), max_tokens=max(call.spec_tokens, call.max_tokens or 0))


def _until_stop(text: str, stops: Sequence[str]) -> tuple[str, str] | None:
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return None
    at, stop = min(found)
    return text[:at], stop
