"""EngineMetrics: what the engine has done since it started, as numbers: tokens, seconds, queues, pages, endings.

Owns the counters. Knows neither requests nor steps, only the numbers that it is told. The engine's background thread
updates them; any thread may take a snapshot(), which never waits for that thread nor makes it wait. Prometheus sees a
snapshot at each scrape (MetricsCollector), so that no token costs a call of its library.

Who calls what, all on the engine thread:

    prefix_matched(cached)                         a prompt was looked up in the prefix cache (again after preemption)
    step_submitted(number, prefill, decode, now)   end_forward() has returned; rows of prompts, rows of decoding
    step_retired(number, now)                      ...its tokens have come back
    preempted()                                    a sequence went back to waiting
    pages_evicted(count)                           the prefix cache gave pages up
    request_finished(reason, usage, timings, s)    EngineState.finish, once per request, with its life in seconds
    request_rejected()                             Engine.add_request raised
    set_gauges(waiting, prefilling, running, pages_free, pages_total, pages_cached)      once per turn of the loop

A step counts its rows, also those whose tokens are then dropped because their request ended meanwhile. It takes from
its submit, or from the retirement before it where that is later, to its own retirement: with several steps in flight
their times add up to the time that the device was busy. A mixed step's time is shared out by rows.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict, get_args

from engine.request import FinishReason, Timings, Usage

MAX_BATCH = 64
"""The largest batch size with a time of its own; larger ones count as this."""

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_READS = 1000
"""Copies that a reader takes at most until one lies between two updates; nearly always the first does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """One finished request, over all of its answers. Rates and times are 0 where nothing was measured."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    prefill_tokens: int
    decode_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    end_to_end_latency_s: float
    ttft_s: float
    inter_token_latency_s: float


class HistogramCounts(TypedDict):
    """Values counted by upper bound: `counts` has one more entry than `bounds`, for what is larger still."""

    bounds: tuple[float, ...]
    counts: list[int]
    sum: float


class BatchTime(TypedDict):
    """Decode steps of one batch size and their seconds, without the size's first step, which prepares kernels."""

    steps: int
    seconds: float


class MetricsSnapshot(TypedDict):
    """All metrics at one moment; plain values, fit for JSON."""

    prefill_tokens_sum: int
    prefill_time_sum: float
    prefill_tokens_per_s: float
    decode_tokens_sum: int
    decode_time_sum: float
    decode_tokens_per_s: float
    prompt_tokens_sum: int
    completion_tokens_sum: int
    cached_tokens_sum: int
    cache_lookups: int
    cache_hits: int
    pages_evicted: int
    preemptions: int
    requests_finished: dict[str, int]
    requests_rejected: int
    requests_waiting: int
    requests_prefilling: int
    requests_running: int
    pages_total: int
    pages_free: int
    pages_cached: int
    pages_used: int
    decode_time_by_batch_size: dict[str, BatchTime]
    ttft_s: HistogramCounts
    inter_token_latency_s: HistogramCounts
    end_to_end_latency_s: HistogramCounts
    last_finished_request: dict[str, str | int | float] | None


class _Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def snapshot(self) -> HistogramCounts:
        return {"bounds": self.bounds, "counts": self.counts.copy(), "sum": self.sum}


class EngineMetrics:
    """See the module's docstring. One object lives as long as its ThreadedEngine, through any number of models."""

    def __init__(self) -> None:
        # Odd while an update is under way. A reader that finds it odd, or changed after its copy, copies again; so the
        # engine thread takes no lock that a reader could hold. (The GIL orders the two threads' accesses.)
        self._version = 0
        self._pending: deque[tuple[int, int, int, float]] = deque()
        self._last_retired = 0.0
        self._gauges = (0, 0, 0, 0, 0, 0)
        self._clear()

    def _clear(self) -> None:
        self._prefill_tokens = self._decode_tokens = 0
        self._prefill_s = self._decode_s = 0.0
        self._prompt_tokens = self._completion_tokens = self._cached_tokens = 0
        self._lookups = self._hits = self._evicted = self._preemptions = self._rejected = 0
        self._finished: dict[str, int] = dict.fromkeys(get_args(FinishReason), 0)
        self._batch_steps = [-1] * (MAX_BATCH + 1)  # -1: not even its first step, which is not counted
        self._batch_s = [0.0] * (MAX_BATCH + 1)
        self._ttft, self._latency = _Histogram(_SECONDS), _Histogram(_SECONDS)
        self._per_token = _Histogram(_TOKEN_SECONDS)
        self._last_request: RequestMetrics | None = None

    def reset(self) -> None:
        """Start all sums and counts again from zero. Steps in flight and gauges stay."""
        self._version += 1
        self._clear()
        self._version += 1

    def step_submitted(self, step: int, num_prefill: int, num_decode: int, now: float) -> None:
        """A step of so many rows of prompts and of decoding was submitted."""
        pending = self._pending
        if pending and pending[-1][0] >= step:
            pending.clear()  # another table counts from 1 again; the last one's steps never came back
        pending.append((step, num_prefill, num_decode, now))

    def step_retired(self, step: int, now: float) -> None:
        """A submitted step has come back. Steps before it that have not, never will."""
        pending = self._pending
        while pending and pending[0][0] < step:
            pending.popleft()
        if not pending or pending[0][0] != step:
            return
        _, num_prefill, num_decode, submitted = pending.popleft()
        last = self._last_retired
        seconds = now - (submitted if submitted > last else last)
        self._last_retired = now
        self._version += 1
        if num_prefill:
            share = num_prefill / (num_prefill + num_decode)
            self._prefill_tokens += num_prefill
            self._prefill_s += seconds * share
            self._decode_tokens += num_decode
            self._decode_s += seconds * (1.0 - share)
        else:
            self._decode_tokens += num_decode
            self._decode_s += seconds
            size = num_decode if num_decode < MAX_BATCH else MAX_BATCH
            if self._batch_steps[size] >= 0:
                self._batch_s[size] += seconds
            self._batch_steps[size] += 1
        self._version += 1

    def prefix_matched(self, cached_tokens: int) -> None:
        """The prefix cache was asked for a prompt and had its first `cached_tokens` tokens."""
        self._version += 1
        self._lookups += 1
        if cached_tokens:
            self._hits += 1
            self._cached_tokens += cached_tokens
        self._version += 1

    def pages_evicted(self, count: int) -> None:
        """The prefix cache gave up pages."""
        self._evicted += count

    def preempted(self) -> None:
        """A sequence lost its pages and waits again."""
        self._preemptions += 1

    def request_rejected(self) -> None:
        """A request was refused before it was queued."""
        self._rejected += 1

    def set_gauges(
        self, waiting: int, prefilling: int, running: int, pages_free: int, pages_total: int, pages_cached: int = 0
    ) -> None:
        """Requests by state; pages that nobody holds, all pages, and those that only the prefix cache holds."""
        self._gauges = (waiting, prefilling, running, pages_free, pages_total, pages_cached)

    def request_finished(
        self, reason: FinishReason, usage: Usage, timings: Timings, latency_s: float, num_choices: int = 1
    ) -> None:
        """A request that was queued has ended, `latency_s` after it arrived, with all of its answers."""
        decoded = max(0, usage.completion_tokens - num_choices)  # the first token of each comes out of its prefill
        rate = timings.decode_tokens_per_s
        request = RequestMetrics(
            finish_reason=reason,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            prefill_tokens=usage.prompt_tokens - usage.cached_tokens,
            decode_tokens=decoded,
            prefill_tokens_per_s=timings.prefill_tokens_per_s,
            decode_tokens_per_s=rate,
            end_to_end_latency_s=latency_s,
            ttft_s=timings.ttft_s,
            inter_token_latency_s=num_choices / rate if rate else 0.0,
        )
        count = self._finished[reason] + 1
        # Nothing may raise between the two halves of an update.
        self._version += 1
        self._finished[reason] = count
        self._prompt_tokens += usage.prompt_tokens
        self._completion_tokens += usage.completion_tokens
        self._latency.observe(latency_s)
        if usage.completion_tokens:
            self._ttft.observe(timings.ttft_s)
        if decoded and rate:
            self._per_token.observe(request.inter_token_latency_s)
        self._last_request = request
        self._version += 1

    def snapshot(self) -> MetricsSnapshot:
        """Everything at one moment between two updates. Any thread."""
        for _ in range(_READS):
            version = self._version
            if version % 2 == 0:
                found = self._copy()
                if self._version == version:
                    return found
            time.sleep(0)
        return self._copy()  # the engine updates without a pause; numbers of two moments are better than none

    def _copy(self) -> MetricsSnapshot:
        waiting, prefilling, running, free, total, cached = self._gauges
        last = self._last_request
        return {
            "prefill_tokens_sum": self._prefill_tokens,
            "prefill_time_sum": self._prefill_s,
            "prefill_tokens_per_s": _rate(self._prefill_tokens, self._prefill_s),
            "decode_tokens_sum": self._decode_tokens,
            "decode_time_sum": self._decode_s,
            "decode_tokens_per_s": _rate(self._decode_tokens, self._decode_s),
            "prompt_tokens_sum": self._prompt_tokens,
            "completion_tokens_sum": self._completion_tokens,
            "cached_tokens_sum": self._cached_tokens,
            "cache_lookups": self._lookups,
            "cache_hits": self._hits,
            "pages_evicted": self._evicted,
            "preemptions": self._preemptions,
            "requests_finished": self._finished.copy(),
            "requests_rejected": self._rejected,
            "requests_waiting": waiting,
            "requests_prefilling": prefilling,
            "requests_running": running,
            "pages_total": total,
            "pages_free": free,
            "pages_cached": cached,
            "pages_used": total - free - cached,
            "decode_time_by_batch_size": {
                str(size): {"steps": steps, "seconds": self._batch_s[size]}
                for size, steps in enumerate(self._batch_steps)
                if steps > 0
            },
            "ttft_s": self._ttft.snapshot(),
            "inter_token_latency_s": self._per_token.snapshot(),
            "end_to_end_latency_s": self._latency.snapshot(),
            "last_finished_request": None if last is None else asdict(last),
        }


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0.0 else 0.0
