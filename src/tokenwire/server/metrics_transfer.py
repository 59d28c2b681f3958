"""Figures of KV blocks that travel between engines, for Prometheus; only of engines that move any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tokenwire.engine.base import KVTransferStats

_COUNTERS = (
    ("tokenwire_kv_pulls", "Prompts whose blocks were pulled from another engine.", "pulls"),
    ("tokenwire_kv_pulled_tokens", "Prompt tokens pulled and not computed.", "pulled_tokens"),
    ("vllm:external_prefix_cache_hits", "Prompt tokens pulled and not computed.", "pulled_tokens"),
    ("tokenwire_kv_received_bytes", "Bytes of blocks pulled.", "bytes_received"),
    ("tokenwire_kv_kept", "Prompts whose blocks were kept for other engines.", "kept"),
    ("tokenwire_kv_given", "Of those kept: pulled, or not needed by the puller.", "given"),
    ("tokenwire_kv_expired", "Of those kept: not pulled in time.", "expired"),
    ("tokenwire_kv_dropped", "Of those kept: given up for room, or with the cache.", "dropped"),
    ("tokenwire_kv_sent_bytes", "Bytes of blocks given.", "bytes_sent"),
)
_GAUGES = (
    ("tokenwire_kv_requests_pulling", "Requests whose blocks are on their way.", "num_waiting"),
    ("tokenwire_kv_prompts_kept", "Prompts whose blocks are kept for other engines.", "num_kept"),
)


def transfer_metrics(
    engines: Sequence[tuple[Sequence[str], KVTransferStats]], names: Sequence[str]
) -> Iterator[Metric]:
    """`names` are the labels that every figure has; each engine comes with its values of them."""
    for name, help, source in _COUNTERS:
        counter = CounterMetricFamily(name, help, labels=names)
        for values, stats in engines:
            counter.add_metric(values, float(getattr(stats, source)))
        yield counter
    for name, help, source in _GAUGES:
        gauge = GaugeMetricFamily(name, help, labels=names)
        for values, stats in engines:
            gauge.add_metric(values, float(getattr(stats, source)))
        yield gauge
    fallbacks = CounterMetricFamily(
        "tokenwire_kv_fallbacks", "Prompts computed although blocks were promised.", labels=[*names, "reason"]
    )
    for values, stats in engines:
        for reason, count in stats.fallbacks.items():
            fallbacks.add_metric([*values, reason], count)
    yield fallbacks
