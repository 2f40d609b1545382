"""ramet: structured generation for language-model programs.

Names are imported when they are first used, so that ``import ramet`` costs next to nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramet.endpoint import RuntimeEndpoint as RuntimeEndpoint
    from ramet.engine import Engine as Engine
    from ramet.extraction.job import Extraction as Extraction
    from ramet.extraction.job import extract as extract
    from ramet.extraction.job import stream_record as stream_record
    from ramet.extraction.streaming import TypedSnapshots as TypedSnapshots
    from ramet.extraction.streaming import array_items as array_items
    from ramet.extraction.streaming import partial_model as partial_model
    from ramet.extraction.streaming import snapshots as snapshots
    from ramet.extraction.verbatim import Verbatim as Verbatim
    from ramet.extraction.verbatim import VerbatimText as VerbatimText
    from ramet.frontend_lang import *  # noqa: F403
    from ramet.openai_backend import OpenAI as OpenAI
    from ramet.runtime.protocol.errors import *  # noqa: F403

__version__ = "0.1.0"


def _find_sub_packages() -> None:
    """In a checkout the sub-packages stand beside this folder, not in it. With the checkout's root first on the path
    (``python -c`` or ``python -m`` started there), they are taken from the installed ramet, or else from the root."""
    import sys
    from pathlib import Path

    here = Path(__file__).parent
    if (here / "radix").exists():
        return
    installed = (Path(entry) / "ramet" for entry in sys.path if entry)
    root = next((folder for folder in installed if (folder / "radix").is_dir()), here.parent)
    __path__.append(str(root))  # noqa: F405


_find_sub_packages()

_NAMES = {
    "ramet.frontend_lang": (
        "REGEX_BOOL",
        "REGEX_FLOAT",
        "REGEX_INT",
        "REGEX_STR",
        "AsyncState",
        "ChoicesDecision",
        "Compiled",
        "ChoicesSamplingMethod",
        "Function",
        "Gen",
        "Select",
        "NoBackend",
        "ProgramCancelled",
        "ProgramError",
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
    ),
    "ramet.runtime.protocol.errors": (
        "RametError",
        "InvalidRequest",
        "ConstraintError",
        "InvalidConstraint",
        "UnsupportedConstraint",
        "ConstraintTooComplex",
        "ConstraintTimeout",
        "ConstraintCrashed",
        "Overloaded",
        "GenerationFailed",
        "InvalidModel",
        "ModelNotFound",
        "RequestTimeout",
        "Unavailable",
    ),
    "ramet.openai_backend": ("OpenAI",),
    "ramet.endpoint": ("RuntimeEndpoint",),
    "ramet.engine": ("Engine",),
    "ramet.extraction.job": ("Extraction", "extract", "stream_record"),
    "ramet.extraction.streaming": ("TypedSnapshots", "array_items", "partial_model", "snapshots"),
    "ramet.extraction.verbatim": ("Verbatim", "VerbatimText"),
}
_HOME = {name: home for home, names in _NAMES.items() for name in names}
__all__ = ["__version__", *_HOME]


_ELSEWHERE = {
    "Runtime": "ramet.Engine(model) runs a model here, ramet.RuntimeEndpoint(url) uses a server",
    "ServerArgs": "give options by name: ramet.Engine(model, kv_tokens=...), ramet serve --kv-tokens ...",
    "Anthropic": "only OpenAI-compatible services can be reached: ramet.OpenAI(model)",
    "Crusoe": "only OpenAI-compatible services can be reached: ramet.OpenAI(model, base_url=...)",
    "VertexAI": "only OpenAI-compatible services can be reached: ramet.OpenAI(model)",
    "LiteLLM": "only OpenAI-compatible services can be reached: ramet.OpenAI(model), with base_url= of a LiteLLM proxy",
}
"""Names that users of SGLang may look for."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    home = _HOME.get(name)
    if name in _ELSEWHERE:
        raise AttributeError(f"ramet has no {name}: {_ELSEWHERE[name]}")
    if home is None:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    if home == "ramet.frontend_lang":
        _offer_default_engine()
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


@cache
def _offer_default_engine() -> None:
    """A program that is run without a backend gets an Engine with the default model."""
    from ramet.frontend_lang.backend import Backend
    from ramet.frontend_lang.defaults import set_default_factory

    def make() -> Backend:
        from ramet.engine import default_engine

        return default_engine().backend

    set_default_factory(make)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
