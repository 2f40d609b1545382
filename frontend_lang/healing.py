"""Token healing: a prompt that ends inside a token.

A prompt such as ``"http:"`` ends with the token ``:``, after which a model hardly ever says ``//``: in the texts that
it has seen, ``://`` is one token. Healing takes the last token back and lets the model choose again among all tokens
that begin with its bytes.

    ids     0 ........ at | last        what the model says instead begins with the bytes of `last`
"""

from __future__ import annotations

from dataclasses import replace

from ramet.runtime.protocol.messages import ConstraintSpec

from .backend import GenCall

_SPECIAL = "\\.+*?()|[]{}^$#&-~/"
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def healing_call(call: GenCall, prefix: bytes) -> tuple[GenCall, str] | None:
    """The call that says ``prefix`` first, and its text; None where that cannot be told from a call without healing: a
    prefix that is half a character, or that a stop could begin in."""
    try:
        text = prefix.decode()
    except UnicodeDecodeError:
        return None
    if not text or call.stop_regex or any(_may_begin_in(text, stop) for stop in call.stop):
        return None
    body = "(.|\\n)*" if call.constraint is None else f"({call.constraint.text})"
    pattern = "".join(_NAMED.get(c, "\\" + c if c in _SPECIAL else c) for c in text) + body
    limit = None if call.max_tokens is None else call.max_tokens + 1
    return replace(call, constraint=ConstraintSpec("regex", pattern), max_tokens=limit), text


def _may_begin_in(text: str, stop: str) -> bool:
    return stop in text or any(text.endswith(stop[:size]) for size in range(1, len(stop)))
