"""A page that shows what the calls of some runs cost: self-contained HTML, to keep or to send."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import reading
from .calls import CallRecord

if TYPE_CHECKING:
    from .state import State

_TEMPLATE = Path(__file__).with_name("trace_page.html")


def write_trace(path: str | Path, states: State[Any] | Iterable[State[Any]]) -> None:
    """Write the page for one state's run, or for several; waits for them. Failed runs show the calls that they made."""
    from .state import State

    group = [states] if isinstance(states, State) else list(states)
    runs = []
    for state in group:
        reading.first_error(state._core)
        runs.append(state._core.run)
    origin = min((run.started for run in runs), default=0.0)
    calls = [
        _call(record, run.program, run.started - origin)
        for run in runs
        for record in sorted(run.calls, key=lambda call: call.begin)
    ]
    title = ", ".join(dict.fromkeys(run.program for run in runs)) or "nothing"
    data = json.dumps({"title": title, "calls": calls}, ensure_ascii=False).replace("</", "<\\/")
    Path(path).write_text(_TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", data), encoding="utf-8")


def _call(record: CallRecord, program: str, offset: float) -> dict[str, Any]:
    usage = record.usage
    return {
        "program": program,
        "kind": record.kind,
        "name": record.name,
        "where": str(record.where),
        "path": list(record.path),
        "begin": round(offset + record.begin, 6),
        "end": round(offset + record.end, 6),
        "usage": {name: getattr(usage, name) for name in usage.__struct_fields__},
        "pieces": [list(piece) for piece in record.pieces],
        "diverged": record.diverged,
    }
