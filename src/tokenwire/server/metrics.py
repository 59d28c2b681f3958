"""Figures of this server for Prometheus: plain numbers on the hot path, shaped only when somebody scrapes.

Everything has a `tokenwire_*` name; what vLLM has too is also shown under vLLM's name, because routers and dashboards
read those. All times in seconds.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tokenwire.engine.base import EngineStats
from tokenwire.server.errors import Status
from tokenwire.server.metrics_transfer import transfer_metrics

# vLLM's bounds, so that dashboards made for it fit.
FIRST_TOKEN_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_BOUNDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
LENGTH_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)

MAX_UNKNOWN_FIELDS = 100


@dataclass(slots=True)
class Histogram:
    """Counts by upper bound; one `observe` may stand for many equal observations."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    """One more than there are bounds."""
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, other: Histogram) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self) -> list[tuple[str, float]]:
        rows, running = [], 0
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == float("inf") else f"{float(bound)}", float(running)))
        return rows


@dataclass(slots=True)
class EngineFigures:
    """One replica of the engine."""

    stats: EngineStats = field(default_factory=EngineStats)
    """The newest snapshot."""
    up: bool = True

    def take(self, stats: EngineStats, *, up: bool) -> None:
        """Nothing runs in an engine that is down; its counters stay where they were."""
        self.up = up
        self.stats = stats if up else replace(self.stats, **_AT_REST)


_AT_REST: dict[str, Any] = {"num_running": 0, "num_waiting": 0, "num_waiting_tokens": 0, "kv_cache_usage": 0.0}


@dataclass(slots=True)
class Metrics:
    """Written by the observer and the error layer, read by the collector."""

    model_name: str = ""
    num_requests: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    num_left: int = 0
    """Requests that ended before their last token: client gone, or an error."""
    finished: dict[str, int] = field(default_factory=Counter)
    """By finish reason."""
    errors: dict[tuple[str, int], int] = field(default_factory=Counter)
    """By error type and status."""
    unknown_fields: dict[str, int] = field(default_factory=Counter)
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    time_per_output_token: Histogram = field(default_factory=lambda: Histogram(TOKEN_BOUNDS))
    request_latency: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS))
    prompt_length: Histogram = field(default_factory=lambda: Histogram(LENGTH_BOUNDS))
    output_length: Histogram = field(default_factory=lambda: Histogram(LENGTH_BOUNDS))
    engines: list[EngineFigures] = field(default_factory=lambda: [EngineFigures()])
    """By data-parallel rank; shown with the rank as the label `engine`."""

    def error(self, status: Status) -> None:
        self.errors[status.type, status.code] += 1

    def note_unknown(self, names: Iterable[str]) -> None:
        """Callers choose these names, so the number told apart is bounded."""
        known = self.unknown_fields
        for name in names:
            known[name if name in known or len(known) < MAX_UNKNOWN_FIELDS else "other"] += 1

    def add(self, other: Metrics) -> None:
        """Count what another process has counted; not what it says of engines."""
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, Histogram):
                mine.add(theirs)
            elif isinstance(mine, dict):
                for key, count in theirs.items():
                    mine[key] += count
            elif isinstance(mine, int):
                setattr(self, f.name, mine + theirs)

    def registry(self, process: Collector | None = None) -> CollectorRegistry:
        """A registry of its own: two servers in one process do not mix. `process`: figures of other processes too."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_MetricsCollector(self))
        registry.register(process or ProcessCollector(registry=None))
        return registry


@dataclass(slots=True, frozen=True)
class _Row:
    name: str
    alias: str | None
    help: str
    source: str
    """Attribute of `Metrics`, of `EngineFigures` after `engine.`, of its `EngineStats` after `engine.stats.`."""


_COUNTERS = (
    _Row("requests", None, "Requests that passed all checks.", "num_requests"),
    _Row("requests_left", None, "Requests that ended early: client gone, or an error.", "num_left"),
    _Row("prompt_tokens", "prompt_tokens", "Prompt tokens of requests that got a first token.", "prompt_tokens"),
    _Row("prompt_tokens_cached", "prompt_tokens_cached", "Prompt tokens not computed.", "cached_prompt_tokens"),
    _Row("generation_tokens", "generation_tokens", "Tokens generated.", "generation_tokens"),
    _Row(
        "prefix_cache_queries", "prefix_cache_queries", "Prompt tokens looked up.", "engine.stats.prefix_cache_queries"
    ),
    _Row("prefix_cache_hits", "prefix_cache_hits", "Prompt tokens found.", "engine.stats.prefix_cache_hits"),
    _Row("preemptions", "num_preemptions", "Sequences put back to make room.", "engine.stats.num_preemptions"),
    _Row("engine_steps", None, "Engine steps.", "engine.stats.num_steps"),
)
_SPECULATION = (
    _Row("spec_decode_drafts", "spec_decode_num_drafts", "Drafts that were verified.", "engine.stats.num_drafts"),
    _Row(
        "spec_decode_draft_tokens", "spec_decode_num_draft_tokens", "Tokens guessed.", "engine.stats.num_draft_tokens"
    ),
    _Row(
        "spec_decode_accepted_tokens",
        "spec_decode_num_accepted_tokens",
        "Guessed tokens that were right.",
        "engine.stats.num_accepted_draft_tokens",
    ),
)
_GAUGES = (
    _Row("requests_running", "num_requests_running", "Sequences running.", "engine.stats.num_running"),
    _Row("requests_waiting", "num_requests_waiting", "Sequences waiting.", "engine.stats.num_waiting"),
    _Row("tokens_waiting", None, "Prompt tokens waiting.", "engine.stats.num_waiting_tokens"),
    _Row("kv_cache_usage", "kv_cache_usage_perc", "Share of KV cache in use, 0 to 1.", "engine.stats.kv_cache_usage"),
    _Row("engine_up", None, "1 while the engine can serve.", "engine.up"),
)
_HISTOGRAMS = (
    _Row(
        "time_to_first_token_seconds",
        "time_to_first_token_seconds",
        "From arrival to the first token.",
        "time_to_first_token",
    ),
    _Row("inter_token_seconds", "inter_token_latency_seconds", "Between tokens of one request.", "inter_token"),
    _Row(
        "time_per_output_token_seconds",
        "request_time_per_output_token_seconds",
        "Mean per request, after the first token.",
        "time_per_output_token",
    ),
    _Row("request_seconds", "e2e_request_latency_seconds", "From arrival to the last token.", "request_latency"),
    _Row("request_prompt_tokens", "request_prompt_tokens", "Prompt length.", "prompt_length"),
    _Row("request_generation_tokens", "request_generation_tokens", "Tokens generated per request.", "output_length"),
)
_OLD_ALIASES = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}
"""Names of older vLLM releases that routers still read."""


class _MetricsCollector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        labels = {"model_name": self._metrics.model_name, "engine": "0"}
        names, values = list(labels), list(labels.values())
        yield from self._plain(CounterMetricFamily, _COUNTERS, names)
        yield from self._plain(GaugeMetricFamily, _GAUGES, names)
        for row in _HISTOGRAMS:
            histogram: Histogram = getattr(self._metrics, row.source)
            for name in _names(row):
                shown = HistogramMetricFamily(name, row.help, labels=names)
                shown.add_metric(values, histogram.cumulative(), histogram.total)
                yield shown
        yield from self._by_label(names, values)
        if any(figures.stats.accepted_per_position for figures in self._metrics.engines):
            yield from self._speculation(names, values)
        transfers = [
            ((values[0], str(rank)), figures.stats.kv_transfer)
            for rank, figures in enumerate(self._metrics.engines)
            if figures.stats.kv_transfer is not None
        ]
        if transfers:
            yield from transfer_metrics(transfers, names)

    def _plain(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        rows: Iterable[_Row],
        names: list[str],
    ) -> Iterator[Metric]:
        for row in rows:
            for name in _names(row):
                family = kind(name, row.help, labels=names)
                for rank, value in self._read(row.source):
                    family.add_metric([self._metrics.model_name, rank], float(value))
                yield family

    def _speculation(self, names: list[str], values: list[str]) -> Iterator[Metric]:
        """Only of an engine that speculates."""
        yield from self._plain(CounterMetricFamily, _SPECULATION, names)
        for name in (
            "tokenwire_spec_decode_accepted_tokens_per_pos",
            "vllm:spec_decode_num_accepted_tokens_per_pos",
        ):
            family = CounterMetricFamily(name, "Accepted guesses by place in the draft.", labels=[*names, "position"])
            for rank, figures in enumerate(self._metrics.engines):
                for position, count in enumerate(figures.stats.accepted_per_position):
                    family.add_metric([values[0], str(rank), str(position)], count)
            yield family

    def _by_label(self, names: list[str], values: list[str]) -> Iterator[Metric]:
        """Counters with a label of their own."""
        metrics = self._metrics
        for name in ("tokenwire_request_success", "vllm:request_success"):
            success = CounterMetricFamily(name, "Sequences that ended, by reason.", labels=[*names, "finished_reason"])
            for reason in ("stop", "length", "abort", "error", "repetition"):
                success.add_metric([*values, reason], metrics.finished[reason])
            yield success
        errors = CounterMetricFamily("tokenwire_errors", "Errors told to callers.", labels=[*names, "type", "code"])
        for (kind, code), count in metrics.errors.items():
            errors.add_metric([*values, kind, str(code)], count)
        yield errors
        unknown = CounterMetricFamily(
            "tokenwire_unknown_fields", "Request fields that were passed over.", labels=[*names, "field"]
        )
        for name, count in metrics.unknown_fields.items():
            unknown.add_metric([*values, name], count)
        yield unknown

    def _read(self, source: str) -> Iterator[tuple[str, Any]]:
        """The label `engine` and the figure; one of each replica where the engine counts, else one."""
        whose, _, name = source.rpartition(".")
        if not whose:
            yield "0", getattr(self._metrics, name)
            return
        for rank, figures in enumerate(self._metrics.engines):
            yield str(rank), getattr(figures.stats if whose == "engine.stats" else figures, name)


def _names(row: _Row) -> list[str]:
    names = [f"tokenwire_{row.name}"]
    if row.alias is not None:
        alias = f"vllm:{row.alias}"
        names.append(alias)
        if alias in _OLD_ALIASES:
            names.append(_OLD_ALIASES[alias])
    return names
