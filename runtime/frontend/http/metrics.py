"""Counters in Prometheus' text format: the scheduler's own, asked for at each scrape, and those of this frontend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from ramet.runtime.frontend.generation import Timing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)

BLOCK_STATES = ("total", "free", "private", "evictable", "locked")
REQUEST_STATES = ("running", "queued", "waiting")
SLOTS = ("allocated", "unused")
TOKEN_KINDS = ("prompt", "cached", "computed", "forced", "sampled")


class _SchedulerStats(Collector):
    """The scheduler's numbers as of the last ``stats``."""

    def __init__(self) -> None:
        self.stats: dict[str, Any] = {}

    def collect(self) -> Iterable[Metric]:
        yield from self._gauges("ramet_blocks", "KV blocks by state", "state", "blocks", BLOCK_STATES)
        yield from self._gauges("ramet_requests", "Requests by state", "state", "requests", REQUEST_STATES)
        tokens = CounterMetricFamily("ramet_tokens", "Tokens by kind", labels=["kind"])
        for kind in TOKEN_KINDS:
            tokens.add_metric([kind], float(self.stats.get("tokens", {}).get(kind, 0)))
        yield tokens
        preemptions = CounterMetricFamily("ramet_preemptions", "Running requests pushed back for want of blocks")
        preemptions.add_metric([], float(self.stats.get("preemptions", 0)))
        yield preemptions
        yield from self._gauges(
            "ramet_kv_slots",
            "KV slots in blocks that running requests hold, and those of them that hold nothing",
            "state",
            "waste",
            SLOTS,
        )
        unused = GaugeMetricFamily("ramet_kv_unused_ratio", "Unused over held KV slots, mean over all steps")
        unused.add_metric([], float(self.stats.get("waste", {}).get("mean", 0)))
        yield unused

    def _gauges(self, name: str, text: str, label: str, key: str, states: tuple[str, ...]) -> Iterator[Metric]:
        family = GaugeMetricFamily(name, text, labels=[label])
        for state in states:
            family.add_metric([state], float(self.stats.get(key, {}).get(state, 0)))
        yield family


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._scheduler = _SchedulerStats()
        self._registry.register(self._scheduler)
        self.http = Counter("ramet_http_requests", "HTTP requests", ["path", "status"], registry=self._registry)
        self.open = Gauge("ramet_http_open_requests", "HTTP requests under way", registry=self._registry)
        self.seconds = Histogram(
            "ramet_http_request_seconds", "Duration of requests", ["path"], registry=self._registry, buckets=_SECONDS
        )

        self.first = Histogram(
            "ramet_time_to_first_token_seconds",
            "From the acceptance of a request to its first token",
            registry=self._registry,
            buckets=_SECONDS,
        )
        self.between = Histogram(
            "ramet_time_per_output_token_seconds",
            "Mean time between tokens of a request, after the first",
            registry=self._registry,
            buckets=_BETWEEN,
        )
        self.total = Histogram(
            "ramet_request_seconds", "Duration of generations", registry=self._registry, buckets=_SECONDS
        )
        self.prompt = Histogram(
            "ramet_request_prompt_tokens", "Prompt tokens of a request", registry=self._registry, buckets=_TOKENS
        )
        self.output = Histogram(
            "ramet_request_output_tokens", "Tokens of a choice", registry=self._registry, buckets=_TOKENS
        )
        self.ends = Counter("ramet_choices", "Choices by how they ended", ["reason"], registry=self._registry)

    def ended(self, timing: Timing) -> None:
        """Book a request of the client."""
        for reason in timing.reasons:
            self.ends.labels(reason).inc()
        self.total.observe(timing.total_s)
        if timing.first_s is None:
            return
        self.first.observe(timing.first_s)
        self.prompt.observe(sum(usage.prompt for usage in timing.usages))
        for usage in timing.usages:
            self.output.observe(usage.completion)
        longest = max(usage.completion for usage in timing.usages)
        if longest > 1:
            self.between.observe((timing.total_s - timing.first_s) / (longest - 1))

    def text(self, stats: dict[str, Any]) -> bytes:
        """``stats``: the scheduler's reply to Control("stats")."""
        self._scheduler.stats = stats
        return generate_latest(self._registry)
