"""What happens to fields that are not known here: ignored and named, unless the answer would then be another one.

Two kinds are refused: fields of other servers that limit what may be generated, and those that change how it is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import HttpError, bad_request

_LIMITING = re.compile(
    r"guided|grammar|whitespace|additional_prop|schema|regex|choice|constrain|structur|allowed|bad_words|banned|forbid|force|logits_processor"
    r"|^token_ids_logprob$|^functions$|^function_call$|^format$|^suffix$|^best_of$|^pattern$|^begin_suppress|^suppress|beam|^stop"
)
_ASKS_NOTHING: tuple[object, ...] = (False, "", [], {}, 0, 1)
"""Values that ask for nothing, whatever the field (``best_of`` 1, ``use_beam_search`` false)."""

_ENGINES = frozenset({"guided_decoding_backend", "disable_fallback", "grammar_lazy"})
"""They choose how a limit is enforced, not which one."""

_SAMPLERS: Mapping[str, tuple[object, ...]] = {
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "typical_p": (1, 0),
    "typical": (1,),
    "top_n_sigma": (-1, 0),
    "dynatemp_range": (0,),
    "tfs_z": (1,),
    "top_a": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "penalty_alpha": (0,),
    "length_penalty": (1, 0),
    "thinking_token_budget": (),
}
"""Ways of drawing that are not built in, and the values that switch each off."""

_HINTS: Mapping[str, str] = {
    "guided_whitespace_pattern": 'Blanks of JSON are chosen by whitespace: "compact" or "flexible".',
    "whitespace_pattern": 'Blanks of JSON are chosen by whitespace: "compact" or "flexible".',
    "functions": "Use tools and tool_choice.",
    "function_call": "Use tools and tool_choice.",
    "best_of": "Ask for n choices with logprobs and choose among them.",
    "suffix": "Filling in the middle needs a model that was trained for it; write its prompt by hand.",
    "chat_template": "Start the server with --chat-template FILE, or send a rendered prompt to /v1/completions.",
}
_DEFAULT_HINT = (
    "Supported are: response_format, regex, choice, grammar, json_schema, guided_json, guided_regex, guided_choice, "
    "guided_grammar, structured_outputs, tools, stop, stop_token_ids, logit_bias."
)


_NAMED = 32
"""Fields that are told by name: clients take no header of any length."""


def ignored(extra: Mapping[str, object]) -> list[str]:
    """Names of unknown fields that change nothing of what is asked for. Raises HttpError for one that would."""
    given = {name: value for name, value in extra.items() if value is not None}
    for name, value in given.items():
        _check(name, value)
    # They go into a header, where only plain characters may stand.
    names = sorted(name[:64].encode("unicode_escape").decode("ascii")[:64] for name in given)
    return names if len(names) <= _NAMED else [*names[:_NAMED], f"and {len(names) - _NAMED} more"]


def _check(name: str, value: object) -> None:
    if name in _ENGINES:
        return
    if name in _SAMPLERS:
        if value not in _SAMPLERS[name] and value is not False:
            raise bad_request(
                f"{name} is not built in, and without it the text would be drawn in another way than asked for. "
                "Supported are: temperature, top_p, top_k, min_p, the three penalties, logit_bias, seed.",
                name,
                "unsupported_parameter",
            )
    elif name == "chat_template" or (_LIMITING.search(name) and value not in _ASKS_NOTHING):
        raise unsupported(name)


def unsupported(name: str) -> HttpError:
    """``name`` asks for something that other servers have."""
    hint = _HINTS.get(name.rsplit(".", 1)[-1], _DEFAULT_HINT)
    return bad_request(
        f"{name} is not supported here, and ignoring it would give another answer than asked for. {hint}",
        name,
        "unsupported_parameter",
    )
