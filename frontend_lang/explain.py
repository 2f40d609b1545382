"""What a run cost, call by call, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.runtime.protocol.messages import Usage

from .calls import CallRecord

_HEAD = ("call", "prompt", "cached", "computed", "forced", "sampled", "seconds", "not cached from")


@dataclass(frozen=True, slots=True)
class Explanation:
    """``calls`` in the order in which they began. ``str()`` is a table; ``total`` adds the calls up."""

    program: str
    calls: list[CallRecord]

    @property
    def total(self) -> Usage:
        """Sums over all calls: prompt = cached + computed, completion = forced + sampled."""
        usages = [call.usage for call in self.calls]
        return Usage(*(sum(getattr(usage, name) for usage in usages) for name in Usage.__struct_fields__))

    @property
    def seconds(self) -> float:
        """From the beginning of the run to the end of its last call."""
        return max((call.end for call in self.calls), default=0.0)

    def __str__(self) -> str:
        rows = [_HEAD, *(_row(call) for call in self.calls)]
        total = self.total
        rows.append(("total", *_numbers(total), f"{self.seconds:.2f}", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD) - 1)]
        lines = []
        for row in rows:
            cells = [row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, len(widths))), row[-1]]
            lines.append("  ".join(cells).rstrip())
        share = 100 * total.cached / total.prompt if total.prompt else 0.0
        lines.append(f"{self.program}: {len(self.calls)} calls, {share:.0f} % of the prompt tokens came from the cache")
        return "\n".join(lines)


def _numbers(usage: Usage) -> tuple[str, ...]:
    return tuple(str(n) for n in (usage.prompt, usage.cached, usage.computed, usage.forced, usage.sampled))


def _row(call: CallRecord) -> tuple[str, ...]:
    indent = "  " * (len(call.path) // 2)
    name = f"{indent}{call.kind} {call.name or '-'}" + (f" [{call.path[-1]}]" if call.path else "")
    place = repr(call.diverged) if call.diverged else ""
    return (name, *_numbers(call.usage), f"{call.end - call.begin:.2f}", place)
