"""The bodies that the endpoints take, as types. Names are OpenAI's, plus those that vLLM and SGLang users know."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import bad_request, from_validation
from .unknown import ignored

MAX_DEPTH = 254
"""Of the arrays and objects of a body."""

T = TypeVar("T", bound="Body")


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class Body(Part):
    """``model_extra`` holds fields that are not known here."""

    def ignored(self) -> list[str]:
        """Unknown fields that change nothing of what is asked for. Raises HttpError for one that would."""
        return ignored(self.model_extra or {})


class StreamOptions(Part):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Every chunk tells the usage so far, not the last one alone."""
    include_partial: bool | None = None
    """Every chunk of a JSON answer holds the value so far, see ``objects``."""


class JsonSchemaFormat(Part):
    name: str = ""
    description: str | None = None
    # "schema" is a method of the base class.
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class Structure(Part):
    """One kind of tagged value inside free text."""

    begin: str
    end: str
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")


class ResponseFormat(Part):
    """OpenAI's shape; ``schema`` beside ``type`` as llama.cpp has it, ``value`` as TGI has it, ``structures`` and
    ``triggers`` as SGLang and vLLM have them."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    value: Any = None
    structures: list[Structure] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(Body):
    json_: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None


class SamplingFields(Body):
    """How ids are drawn and when a text ends, by the same names in every endpoint."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None


class GenerationBody(SamplingFields):
    """What chat and completions share."""

    model: str
    max_tokens: int | None = None
    n_predict: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int | None = None
    timeout_s: float | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    # constraints
    response_format: ResponseFormat | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    ebnf: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
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
    separate_reasoning: bool | None = None
    """Thoughts between <think> tags go into reasoning_content; null: as the server was started."""
    include_reasoning: bool | None = None
    """False: thoughts that are told apart are left out."""
    documents: list[dict[str, Any]] | None = None
    """For templates of models that answer from documents."""
    echo: bool | None = None


class CompletionBody(GenerationBody):
    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None


class TokenizeBody(Body):
    """``prompt`` with ``add_special_tokens`` and ``return_token_strs`` as in vLLM; ``content`` with ``add_special`` and
    ``with_pieces`` as in llama.cpp."""

    model: str | None = None
    prompt: str | None = None
    text: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    special: bool | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]


def parse(kind: type[T], raw: bytes) -> T:
    """Raises HttpError (400) for what is not JSON, not UTF-8, or not of this type."""
    data = _read(raw)
    check_depth(raw, data)
    if not isinstance(data, dict):
        raise bad_request("the body must be a JSON object", None, "invalid_json")
    return validated(kind, data)


def _read(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not valid JSON: {error}", None, "invalid_json") from None


def check_depth(raw: bytes, data: Any = None) -> None:
    """Raises HttpError (400) for a body that is nested deeper than whatever walks it can go. ``data``: what ``raw``
    reads as; None: it is read here."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    try:
        orjson.dumps(_read(raw) if data is None else data)  # which goes MAX_DEPTH deep
    except orjson.JSONEncodeError:
        raise bad_request(
            f"the body is nested too deep; {MAX_DEPTH} levels are possible", None, "invalid_json"
        ) from None


def validated(kind: type[T], data: dict[str, Any]) -> T:
    """Raises HttpError (400) naming the first field that is not of its type."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise from_validation(error) from None
