"""Watch a running server: requests, KV blocks, and what came from the cache. Ctrl-C ends it."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from ramet.cli.remote import add_server_options, fetch

_WIDTH = 50
_PARTS = (("locked", "#"), ("private", "="), ("evictable", "-"), ("free", "."))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_options(parser)
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (1)")
    parser.add_argument("--once", action="store_true", help="print the state once")


def run(arguments: argparse.Namespace) -> int:
    before, shown = fetch(arguments, "/metrics"), 0
    lines = screen(before, before, 0.0)
    while not arguments.once:
        if shown and sys.stdout.isatty():
            print(f"\x1b[{shown}A\x1b[J", end="")
        print("\n".join(lines), flush=True)
        shown = len(lines)
        began = time.monotonic()
        time.sleep(max(0.05, arguments.interval))
        now = fetch(arguments, "/metrics")
        lines = screen(now, before, time.monotonic() - began)
        before = now
    print("\n".join(lines))
    return 0


def screen(now: dict[str, Any], before: dict[str, Any], seconds: float) -> list[str]:
    """Lines that show the counters ``now``, and their rates since ``before``."""
    blocks, requests, tokens = now["blocks"], now["requests"], now["tokens"]
    prompt = tokens["prompt"]
    share = f"{tokens['cached'] / prompt:.0%}" if prompt else "-"
    rates = {
        name: (tokens[name] - before["tokens"][name]) / seconds if seconds > 0 else 0.0
        for name in ("cached", "computed", "forced", "sampled")
    }
    return [
        f"{now.get('model', '')}: {requests['running']} running, {requests['queued']} queued, "
        f"{requests['waiting']} waiting for a prefix that is being computed",
        f"blocks   [{bar(blocks)}] {blocks['total']} of {now['block_size']} tokens",
        "         " + ", ".join(f"{sign} {blocks[name]} {name}" for name, sign in _PARTS),
        f"prompt   {prompt} tokens, {share} of them from the cache",
        "per second: " + ", ".join(f"{rate:.0f} {name}" for name, rate in rates.items()),
        f"steps    {1000 * now['step_seconds']:.1f} ms each, {1000 * now['step_gap']:.1f} ms between them; "
        f"{now['preemptions']} pushed back, {now['evictions']} evicted",
    ]


def bar(blocks: dict[str, int], width: int = _WIDTH) -> str:
    """The pool's states side by side; what there is at all has a sign of its own."""
    total = max(1, blocks["total"])
    text = "".join(sign * max(bool(blocks[name]), round(width * blocks[name] / total)) for name, sign in _PARTS)
    return text[:width].ljust(width, ".")
