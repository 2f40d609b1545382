"""Runs of the programs in ``tests/programs``, and what is compared of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ramet as rt

sys.path.insert(0, str(Path(__file__).parent / "programs"))

if TYPE_CHECKING:
    from catalog import Case

OPTIONS = {"seed": 7, "temperature": 0}


def run(case: Case, backend: object, full: bool = False, compile: bool = False) -> list[rt.State[Any]]:
    """The finished states of all items. Raises the first error of any."""
    states = list(case.program.run_batch(case.items(full), backend=backend, compile=compile, **OPTIONS))
    for state in states:
        error = state.error()
        if error is not None:
            raise error
    return states


def ids(states: Sequence[rt.State[Any]]) -> list[Any]:
    """Of the roots, and of every value that a call of any branch made."""
    found: list[Any] = []
    for state in states:
        found.append(state.token_ids())
        for name in sorted(name for name in state._core.declared if isinstance(name, str)):
            found.append((name, _output_ids(state.get_meta_info(name)), state[name]))
        calls = sorted(state.explain().calls, key=lambda call: (call.path, call.begin, call.name or ""))
        found.append([(call.kind, call.name, call.path, call.text, call.usage.prompt) for call in calls])
    return found


def _output_ids(meta: Any) -> Any:
    if isinstance(meta, list):
        return [_output_ids(one) for one in meta]
    return meta.get("output_ids") if isinstance(meta, dict) else None
