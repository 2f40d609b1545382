"""What the prefix tree costs where nothing is shared: ``python benchmarks/tree_share.py``.

Forty requests without anything in common go through the real scheduler. Printed: the time spent in the tree, beside the
time that the steps would take (``Speed``: about a model of 135M parameters on two CPU cores).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from programs import no_sharing, requests_of
from ramet.radix import RadixTree
from ramet.runtime.protocol.config import SchedulerConfig
from ramet.runtime.scheduler.simulate import Options, simulate

METHODS = (
    "advance",
    "match",
    "acquire",
    "acquire_root",
    "acquire_tail",
    "share",
    "commit",
    "announce",
    "withdraw",
    "release",
    "evict",
)


class Stopwatch:
    """Seconds in the outermost calls of the tree's methods."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return method(*args, **kwargs)
            self._inside = True
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start
                self._inside = False

        return timed


def watch_tree() -> Stopwatch:
    """Times every tree of this process from now on."""
    watch = Stopwatch()
    for name in METHODS:
        setattr(RadixTree, name, watch.wrap(getattr(RadixTree, name)))
    return watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    watch = watch_tree()
    report = simulate(requests_of(no_sharing), Options(1 << 20, SchedulerConfig(max_rows=16), verify=False))
    result = {"tree_s": watch.seconds, "steps_s": report.seconds, "share": watch.seconds / report.seconds}
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"tree {watch.seconds * 1e3:.1f} ms of {report.seconds:.1f} s: {result['share']:.2%}")


if __name__ == "__main__":
    main()
