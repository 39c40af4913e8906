"""Metrics for Prometheus: one snapshot per scrape, turned into metric families.

Owns names, labels and help texts. Knows nothing of where the numbers come from. Any thread. prometheus-client is
imported at the first use, since most people's engines are never scraped.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from engine.metrics import EngineMetrics, HistogramCounts, MetricsSnapshot

if TYPE_CHECKING:
    from prometheus_client import Metric

_PREFIX = "inglenook_"


class MetricsCollector:
    """Register this with a prometheus_client registry; it takes a snapshot whenever that is scraped."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        """Nothing: registering must not scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric family, from one snapshot."""
        snapshot = self._metrics.snapshot()
        yield from _counters(snapshot)
        yield from _gauges(snapshot)
        yield from _batch_times(snapshot)
        yield _histogram("time_to_first_token_seconds", "From arrival to first token.", snapshot["ttft_s"])
        yield _histogram(
            "inter_token_seconds", "A request's mean time per decoded token.", snapshot["inter_token_latency_s"]
        )
        yield _histogram("request_seconds", "From arrival to the end.", snapshot["end_to_end_latency_s"])


def exposition(metrics: EngineMetrics) -> tuple[bytes, str]:
    """The metrics as Prometheus reads them, and the content type of that."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetricsCollector(metrics))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _counters(found: MetricsSnapshot) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, text, value in (
        ("prefill_tokens", "Prompt tokens computed.", found["prefill_tokens_sum"]),
        ("prefill_seconds", "Device time spent on prompts.", found["prefill_time_sum"]),
        ("decode_tokens", "Tokens computed by decoding.", found["decode_tokens_sum"]),
        ("decode_seconds", "Device time spent on decoding.", found["decode_time_sum"]),
        ("prompt_tokens", "Prompt tokens of finished requests.", found["prompt_tokens_sum"]),
        ("completion_tokens", "Generated tokens of finished requests.", found["completion_tokens_sum"]),
        ("cached_tokens", "Prompt tokens found in the prefix cache.", found["cached_tokens_sum"]),
        ("cache_lookups", "Prompts looked up in the prefix cache.", found["cache_lookups"]),
        ("cache_hits", "Prompts of which the prefix cache had a part.", found["cache_hits"]),
        ("pages_evicted", "Pages that the prefix cache gave up.", found["pages_evicted"]),
        ("preemptions", "Sequences sent back to waiting for want of memory.", found["preemptions"]),
        ("requests_rejected", "Requests refused before they were queued.", found["requests_rejected"]),
    ):
        yield CounterMetricFamily(_PREFIX + name, text, value=value)
    finished = CounterMetricFamily(_PREFIX + "requests_finished", "Finished requests.", labels=("finish_reason",))
    for reason, count in found["requests_finished"].items():
        finished.add_metric((reason,), count)
    yield finished


def _gauges(found: MetricsSnapshot) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    requests = GaugeMetricFamily(_PREFIX + "requests", "Open requests.", labels=("state",))
    requests.add_metric(("waiting",), found["requests_waiting"])
    requests.add_metric(("prefilling",), found["requests_prefilling"])
    requests.add_metric(("running",), found["requests_running"])
    yield requests
    pages = GaugeMetricFamily(_PREFIX + "pages", "Pages of the key-value cache.", labels=("state",))
    pages.add_metric(("free",), found["pages_free"])
    pages.add_metric(("cached",), found["pages_cached"])
    pages.add_metric(("used",), found["pages_used"])
    yield pages


def _batch_times(found: MetricsSnapshot) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    text = "of decode steps by batch size, the first step of each left out."
    steps = CounterMetricFamily(_PREFIX + "decode_batch_steps", f"Number {text}", labels=("batch_size",))
    seconds = CounterMetricFamily(_PREFIX + "decode_batch_seconds", f"Time {text}", labels=("batch_size",))
    for size, batch in found["decode_time_by_batch_size"].items():
        steps.add_metric((size,), batch["steps"])
        seconds.add_metric((size,), batch["seconds"])
    yield steps
    yield seconds


def _histogram(name: str, text: str, found: HistogramCounts) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    bounds = [*(str(bound) for bound in found["bounds"]), "+Inf"]
    buckets = list(zip(bounds, accumulate(found["counts"]), strict=True))
    return HistogramMetricFamily(_PREFIX + name, text, buckets=buckets, sum_value=found["sum"])
