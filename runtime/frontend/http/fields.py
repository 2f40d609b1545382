"""The bodies that the endpoints take, as types. Names are OpenAI's, plus those that vLLM and SGLang users know."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import HttpError, bad_request, from_validation

MAX_BODY = 64 * 1024 * 1024

# Fields of other servers that limit what may be generated. One that we do not enforce must not be ignored.
_LIMITING = re.compile(
    r"guided|grammar|schema|regex|choice|constrain|structur|allowed|bad_words|banned|forbid|force|logits_processor"
    r"|^token_ids_logprob$|^functions$|^function_call$|^format$|^suffix$|^best_of$|^pattern$|^begin_suppress|^suppress|beam|^stop"
)
_NO_LIMIT: tuple[object, ...] = (False, "", [], {}, 0, 1)
"""Values that ask for nothing, whatever the field (``best_of`` 1, ``use_beam_search`` false)."""

T = TypeVar("T", bound="Body")


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class Body(Part):
    """``model_extra`` holds fields that are not known here."""

    def ignored(self) -> list[str]:
        """Unknown fields that change nothing of what is asked for. Raises HttpError for one that would."""
        extra = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        for name, value in extra.items():
            if _LIMITING.search(name) and value not in _NO_LIMIT:
                raise bad_request(
                    f"{name} is not supported here, and ignoring it would give output that it forbids. "
                    "Supported are: response_format, regex, choice, grammar, guided_json, guided_regex, guided_choice, "
                    "guided_grammar, structured_outputs, tools, stop, stop_token_ids, logit_bias.",
                    name,
                    "unsupported_parameter",
                )
        # They go into a header, where only plain characters may stand.
        return sorted(name.encode("unicode_escape").decode("ascii")[:64] for name in extra)


class StreamOptions(Part):
    include_usage: bool | None = None


class JsonSchemaFormat(Part):
    name: str = ""
    description: str | None = None
    # "schema" is a method of the base class.
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Part):
    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Part):
    model_config = ConfigDict(strict=True, extra="forbid")
    json_: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class GenerationBody(Body):
    """What chat and completions share."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int | None = None
    timeout_s: float | None = None
    # constraints
    response_format: ResponseFormat | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    ebnf: str | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    whitespace: Literal["compact", "flexible"] | None = None


class FunctionDefinition(Part):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Part):
    name: str


class NamedTool(Part):
    type: Literal["function"]
    function: NamedFunction


class Message(Part):
    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(GenerationBody):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(GenerationBody):
    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    logprobs: int | None = None


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    text: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    special: bool | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]


def parse(kind: type[T], raw: bytes) -> T:
    """Raises HttpError (400, or 413) for what is not JSON, not UTF-8, or not of this type."""
    if len(raw) > MAX_BODY:
        raise HttpError(413, f"the body has {len(raw)} bytes; at most {MAX_BODY} are taken", code="request_too_large")
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not valid JSON: {error}", None, "invalid_json") from None
    if not isinstance(data, dict):
        raise bad_request("the body must be a JSON object", None, "invalid_json")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise from_validation(error) from None
