"""The DSL: programs of many language-model calls. What users need of it is in ``import ramet``."""

from __future__ import annotations

from .async_state import AsyncState
from .backend import Backend
from .choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    sum_logprobs,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from .compiled import Compiled
from .constraint import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from .control import flush_cache, get_server_info
from .defaults import default_backend, global_config, set_default_backend, set_default_factory
from .errors import NoBackend, ProgramCancelled, ProgramError, UnknownVariable
from .expr import Gen, Select
from .program import Function, function
from .roles import (
    assistant,
    assistant_begin,
    assistant_end,
    image,
    role,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from .scoring import score, top
from .state import State
from .surface import gen, gen_int, gen_string, select
from .symbols import TraceError
from .tools import Tool, ToolCall, ToolError, ToolRoundsExceeded
from .tools import as_tool as tool
from .trace_page import write_trace

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "AsyncState",
    "Backend",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Compiled",
    "Function",
    "Gen",
    "NoBackend",
    "ProgramCancelled",
    "ProgramError",
    "Select",
    "State",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolRoundsExceeded",
    "TraceError",
    "UnknownVariable",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "default_backend",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "role",
    "score",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "set_default_factory",
    "sum_logprobs",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "top",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
    "write_trace",
]
