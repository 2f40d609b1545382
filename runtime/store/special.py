"""Which tokens end a text: the file's own end token, and others that chat models are known to end with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_END_NAMES = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
)


def end_ids(declared: Iterable[int], special: Mapping[str, int]) -> tuple[int, ...]:
    """The ``declared`` end ids first, then special tokens with a customary end name. ``special``: text to id."""
    found = list(dict.fromkeys(declared))
    found += [special[name] for name in _END_NAMES if name in special and special[name] not in found]
    return tuple(found)
