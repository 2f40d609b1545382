"""Programs written for SGLang run unchanged: its own test programs, read where they lie, on the real model.

Their place (a folder or the wheel of ``pip download --no-deps sglang``) is given by SGLANG_SOURCES.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ramet.frontend_lang

import ramet as rt

PROGRAMS = "sglang/test/test_programs.py"
NAMES = [
    "Anthropic",
    "Crusoe",
    "Engine",
    "LiteLLM",
    "OpenAI",
    "Runtime",
    "RuntimeEndpoint",
    "ServerArgs",
    "VertexAI",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]
# These assert what a good model answers; here only that may fail.
QUALITY = {"test_few_shot_qa", "test_decode_int", "test_react", "test_decode_json"}
RUN = [
    "test_few_shot_qa",
    "test_mt_bench",
    "test_select",
    "test_decode_int",
    "test_decode_json_regex",
    "test_decode_json",
    "test_expert_answer",
    "test_tool_use",
    "test_react",
    "test_parallel_decoding",
    "test_parallel_encoding",
    "test_stream",
    "test_stream_logprobs",
    "test_regex",
    "test_dtype_gen",
    "test_chat_completion_speculative",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there_or_names_its_replacement(name: str) -> None:
    try:
        assert getattr(rt, name) is not None
    except AttributeError as error:
        assert "ramet has no" in str(error) and "ramet." in str(error)


@pytest.mark.parametrize(
    ("name", "positional"),
    [
        ("gen", ["name", "max_tokens", "min_tokens", "n", "stop", "stop_token_ids"]),
        ("gen_int", ["name", "max_tokens", "n", "stop"]),
        ("gen_string", ["name", "max_tokens", "n", "stop"]),
        ("select", ["name", "choices", "temperature", "choices_method"]),
    ],
)
def test_the_order_of_positional_arguments(name: str, positional: list[str]) -> None:
    assert list(inspect.signature(getattr(rt, name)).parameters)[: len(positional)] == positional


def _source() -> str:
    place = os.environ.get("SGLANG_SOURCES", "")
    if not place:
        pytest.skip("SGLang's sources are not here: set SGLANG_SOURCES to its wheel or checkout")
    path = Path(place)
    if path.is_file():
        return zipfile.ZipFile(path).read(PROGRAMS).decode()
    found = [path / PROGRAMS, path / "python" / PROGRAMS]
    return next(file for file in found if file.exists()).read_text()


@pytest.fixture(scope="module")
def programs() -> Iterator[types.ModuleType]:
    source = _source()
    utilities = types.ModuleType("sglang.srt.utils")
    vars(utilities)["is_hip"] = lambda: False
    aliases: dict[str, Any] = {
        "sglang": rt,
        "sglang.lang": types.ModuleType("sglang.lang"),
        "sglang.lang.ir": ramet.frontend_lang,
        "sglang.srt": types.ModuleType("sglang.srt"),
        "sglang.srt.utils": utilities,
    }
    before = {name: sys.modules.get(name) for name in aliases}
    sys.modules.update(aliases)
    module = types.ModuleType("programs")
    exec(compile(source, PROGRAMS, "exec"), vars(module))
    with rt.Engine(progress=False) as engine:
        rt.set_default_backend(engine)
        yield module
        rt.set_default_backend(None)
    for name, old in before.items():
        if old is None:
            del sys.modules[name]
        else:
            sys.modules[name] = old


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_program_runs_unchanged(programs: types.ModuleType, name: str) -> None:
    program = getattr(programs, name)
    arguments = {"check_answer": False} if "check_answer" in inspect.signature(program).parameters else {}
    try:
        program(**arguments)
    except (AssertionError, ValueError):  # ValueError: the text is no JSON, which its regex does not ask for
        if name not in QUALITY:
            raise
