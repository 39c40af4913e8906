"""Metrics: what counts as what, a reader beside a busy engine, and what Prometheus reads of it."""

from __future__ import annotations

import sys
import threading
import timeit
from collections.abc import Iterator

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.exposition import exposition
from engine.metrics import MAX_BATCH, EngineMetrics, MetricsSnapshot
from engine.request import Timings, Usage

USAGE = Usage(prompt_tokens=100, completion_tokens=21, cached_tokens=64)
TIMINGS = Timings(ttft_s=0.2, prefill_tokens_per_s=180.0, decode_tokens_per_s=40.0)
NOTHING = Timings(ttft_s=0.0, prefill_tokens_per_s=0.0, decode_tokens_per_s=0.0)


@pytest.fixture
def metrics() -> EngineMetrics:
    return EngineMetrics()


class TestSteps:
    def test_a_prompts_and_a_decode_step_count_apart(self, metrics: EngineMetrics) -> None:
        metrics.step_submitted(1, 100, 0, now=10.0)
        metrics.step_retired(1, now=10.5)
        metrics.step_submitted(2, 0, 4, now=20.0)
        metrics.step_retired(2, now=20.1)
        found = metrics.snapshot()
        assert (found["prefill_tokens_sum"], found["prefill_time_sum"]) == (100, 0.5)
        assert (found["decode_tokens_sum"], found["decode_time_sum"]) == (4, pytest.approx(0.1))
        assert found["prefill_tokens_per_s"] == 200.0
        assert found["decode_tokens_per_s"] == pytest.approx(40.0)

    def test_steps_in_flight_share_the_time_without_overlap(self, metrics: EngineMetrics) -> None:
        for step in (1, 2, 3, 4):
            metrics.step_submitted(step, 0, 1, now=0.01 * step)
        for step in (1, 2, 3, 4):
            metrics.step_retired(step, now=1.0 * step)
        found = metrics.snapshot()
        assert found["decode_time_sum"] == pytest.approx(4.0 - 0.01)
        # The first step of a size is left out here, as it prepares kernels.
        assert found["decode_time_by_batch_size"] == {"1": {"steps": 3, "seconds": 3.0}}

    def test_streams_that_ride_along_with_a_prompt_are_counted(self, metrics: EngineMetrics) -> None:
        metrics.step_submitted(1, 30, 10, now=0.0)
        metrics.step_retired(1, now=2.0)
        found = metrics.snapshot()
        assert (found["prefill_tokens_sum"], found["decode_tokens_sum"]) == (30, 10)
        assert (found["prefill_time_sum"], found["decode_time_sum"]) == (1.5, 0.5)
        assert found["decode_time_by_batch_size"] == {}

    def test_every_batch_size_has_its_time_and_the_last_one_takes_the_rest(self, metrics: EngineMetrics) -> None:
        step = 0
        for _ in range(3):
            for size in range(1, MAX_BATCH + 2):
                step += 1
                metrics.step_submitted(step, 0, size, now=float(step))
                metrics.step_retired(step, now=step + 0.5)
        found = metrics.snapshot()["decode_time_by_batch_size"]
        assert list(found) == [str(size) for size in range(1, MAX_BATCH + 1)]
        assert found["5"] == {"steps": 2, "seconds": 1.0}
        assert found[str(MAX_BATCH)] == {"steps": 5, "seconds": 2.5}

    def test_a_step_that_never_comes_back_counts_nothing(self, metrics: EngineMetrics) -> None:
        for step in (1, 2, 3):
            metrics.step_submitted(step, 0, 1, now=float(step))
        metrics.step_retired(3, now=4.0)
        metrics.step_retired(2, now=5.0)
        metrics.step_retired(9, now=6.0)
        assert metrics.snapshot()["decode_tokens_sum"] == 1

    def test_another_model_numbers_its_steps_from_one(self, metrics: EngineMetrics) -> None:
        metrics.step_submitted(900, 0, 1, now=1.0)
        metrics.step_submitted(901, 0, 1, now=1.0)
        metrics.step_submitted(1, 7, 0, now=2.0)
        metrics.step_retired(1, now=3.0)
        found = metrics.snapshot()
        assert (found["prefill_tokens_sum"], found["decode_tokens_sum"]) == (7, 0)


class TestRequests:
    def test_a_finished_request_is_told_whole(self, metrics: EngineMetrics) -> None:
        metrics.request_finished("stop", USAGE, TIMINGS, latency_s=0.7)
        found = metrics.snapshot()
        assert found["last_finished_request"] == {
            "finish_reason": "stop",
            "prompt_tokens": 100,
            "completion_tokens": 21,
            "prefill_tokens": 36,
            "decode_tokens": 20,
            "prefill_tokens_per_s": 180.0,
            "decode_tokens_per_s": 40.0,
            "end_to_end_latency_s": 0.7,
            "ttft_s": 0.2,
            "inter_token_latency_s": 0.025,
        }
        assert (found["prompt_tokens_sum"], found["completion_tokens_sum"]) == (100, 21)

    def test_each_reason_is_counted(self, metrics: EngineMetrics) -> None:
        for reason in ("stop", "stop", "length", "abort"):
            metrics.request_finished(reason, USAGE, TIMINGS, latency_s=1.0)  # type: ignore[arg-type]
        metrics.request_rejected()
        found = metrics.snapshot()
        assert found["requests_finished"] == {"stop": 2, "length": 1, "tool_calls": 0, "abort": 1, "error": 0}
        assert found["requests_rejected"] == 1

    def test_several_answers_decode_at_once(self, metrics: EngineMetrics) -> None:
        metrics.request_finished("length", USAGE, TIMINGS, latency_s=1.0, num_choices=3)
        last = metrics.snapshot()["last_finished_request"]
        assert last is not None
        assert last["decode_tokens"] == 18
        assert last["inter_token_latency_s"] == pytest.approx(3 / 40)

    def test_one_that_never_started_has_no_times(self, metrics: EngineMetrics) -> None:
        metrics.request_finished("abort", Usage(prompt_tokens=5, completion_tokens=0), NOTHING, latency_s=0.3)
        found = metrics.snapshot()
        assert sum(found["ttft_s"]["counts"]) == sum(found["inter_token_latency_s"]["counts"]) == 0
        assert sum(found["end_to_end_latency_s"]["counts"]) == 1
        assert found["last_finished_request"] is not None

    def test_values_fall_below_their_bound(self, metrics: EngineMetrics) -> None:
        for seconds in (0.01, 0.011, 1000.0):
            metrics.request_finished("stop", USAGE, TIMINGS, latency_s=seconds)
        found = metrics.snapshot()["end_to_end_latency_s"]
        assert (found["counts"][0], found["counts"][1], found["counts"][-1]) == (1, 1, 1)
        assert len(found["counts"]) == len(found["bounds"]) + 1
        assert found["sum"] == pytest.approx(1000.021)


def test_cache_preemptions_and_gauges(metrics: EngineMetrics) -> None:
    metrics.prefix_matched(0)
    metrics.prefix_matched(48)
    metrics.prefix_matched(16)
    metrics.pages_evicted(7)
    metrics.preempted()
    metrics.set_gauges(waiting=3, prefilling=1, running=4, pages_free=10, pages_total=100, pages_cached=25)
    found = metrics.snapshot()
    assert (found["cache_lookups"], found["cache_hits"], found["cached_tokens_sum"]) == (3, 2, 64)
    assert (found["pages_evicted"], found["preemptions"]) == (7, 1)
    assert (found["requests_waiting"], found["requests_prefilling"], found["requests_running"]) == (3, 1, 4)
    assert (found["pages_free"], found["pages_cached"], found["pages_used"]) == (10, 25, 65)


def test_reset_starts_from_zero_but_steps_in_flight_stay(metrics: EngineMetrics) -> None:
    fresh = metrics.snapshot()
    fill(metrics)
    metrics.set_gauges(0, 0, 0, 0, 0, 0)
    metrics.step_submitted(100, 0, 2, now=50.0)
    metrics.reset()
    assert metrics.snapshot() == fresh
    metrics.step_retired(100, now=51.0)
    assert metrics.snapshot()["decode_tokens_sum"] == 2


def test_a_snapshot_is_json(metrics: EngineMetrics) -> None:
    fill(metrics)
    assert orjson.loads(orjson.dumps(metrics.snapshot()))["prefill_tokens_sum"] == 96


def test_a_snapshot_is_a_copy(metrics: EngineMetrics) -> None:
    fill(metrics)
    before = metrics.snapshot()
    kept = orjson.dumps(before)
    metrics.request_finished("error", USAGE, TIMINGS, latency_s=1.0)
    metrics.step_submitted(100, 0, 1, now=50.0)
    metrics.step_retired(100, now=51.0)
    assert orjson.dumps(before) == kept


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns every few microseconds, in the midst of whatever they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_readers_beside_a_busy_engine_never_see_half_an_update(metrics: EngineMetrics) -> None:
    stop = threading.Event()
    torn: list[MetricsSnapshot] = []
    reads = [0] * 3

    def check(found: MetricsSnapshot, last: int) -> int:
        """Each step has 3 rows of prompts per row of decoding, in 4 seconds; each request 100 and 21 tokens."""
        steps = found["decode_tokens_sum"]
        finished = found["requests_finished"]["stop"]
        whole = (
            found["prefill_tokens_sum"] == 3 * steps
            and found["prefill_time_sum"] == 3.0 * steps
            and found["prompt_tokens_sum"] == 100 * finished
            and found["completion_tokens_sum"] == 21 * finished
            and sum(found["ttft_s"]["counts"]) == sum(found["end_to_end_latency_s"]["counts"]) == finished
            and found["pages_used"] == found["requests_running"]
        )
        if not whole or steps < last:
            torn.append(found)
        return steps

    def read(reader: int) -> None:
        last = 0
        while not stop.is_set():
            last = check(metrics.snapshot(), last)
            reads[reader] += 1

    readers = [threading.Thread(target=read, args=(number,)) for number in range(len(reads))]
    for reader in readers:
        reader.start()
    step = 0
    while step < 2000 or (min(reads) < 50 and step < 1_000_000):
        step += 1
        metrics.step_submitted(step, 3, 1, now=4.0 * step)
        metrics.step_retired(step, now=4.0 * step + 4.0)
        metrics.request_finished("stop", USAGE, TIMINGS, latency_s=1.0)
        metrics.set_gauges(0, 0, step % 50, 100 - step % 50, 100)
    stop.set()
    for reader in readers:
        reader.join()
    assert not torn
    assert min(reads) >= 50
    assert check(metrics.snapshot(), 0) == step


def test_a_wrong_update_changes_nothing(metrics: EngineMetrics) -> None:
    before = metrics.snapshot()
    with pytest.raises(KeyError):
        metrics.request_finished("no such reason", USAGE, TIMINGS, latency_s=1.0)  # type: ignore[arg-type]
    assert metrics.snapshot() == before
    assert metrics._version % 2 == 0


def fill(metrics: EngineMetrics) -> None:
    """A little of everything."""
    metrics.prefix_matched(64)
    metrics.step_submitted(1, 96, 0, now=1.0)
    metrics.step_retired(1, now=2.0)
    for step in (2, 3, 4):
        metrics.step_submitted(step, 0, 8, now=float(step))
        metrics.step_retired(step, now=step + 0.25)
    metrics.request_finished("stop", USAGE, TIMINGS, latency_s=0.7)
    metrics.request_finished("length", USAGE, TIMINGS, latency_s=7.0)
    metrics.preempted()
    metrics.set_gauges(1, 0, 2, 40, 100, 10)


class TestExposition:
    @pytest.fixture
    def values(self, metrics: EngineMetrics) -> dict[tuple[str, str], float]:
        """(sample, its labels' values) -> value."""
        fill(metrics)
        text, content_type = exposition(metrics)
        assert content_type.startswith("text/plain")
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }

    def test_counters(self, values: dict[tuple[str, str], float]) -> None:
        assert values["inglenook_prefill_tokens_total", ""] == 96
        assert values["inglenook_decode_tokens_total", ""] == 24
        assert values["inglenook_cached_tokens_total", ""] == 64
        assert values["inglenook_preemptions_total", ""] == 1
        assert values["inglenook_requests_finished_total", "stop"] == 1
        assert values["inglenook_requests_finished_total", "abort"] == 0
        assert values["inglenook_decode_batch_steps_total", "8"] == 2
        assert values["inglenook_decode_batch_seconds_total", "8"] == 0.5

    def test_gauges(self, values: dict[tuple[str, str], float]) -> None:
        assert [values["inglenook_pages", state] for state in ("free", "cached", "used")] == [40, 10, 50]
        assert [values["inglenook_requests", state] for state in ("waiting", "prefilling", "running")] == [1, 0, 2]

    def test_histograms_are_cumulative(self, values: dict[tuple[str, str], float]) -> None:
        name = "inglenook_request_seconds"
        assert values[f"{name}_bucket", "0.5"] == 0
        assert values[f"{name}_bucket", "1.0"] == 1
        assert values[f"{name}_bucket", "10.0"] == values[f"{name}_bucket", "+Inf"] == 2
        assert values[f"{name}_count", ""] == 2
        assert values[f"{name}_sum", ""] == pytest.approx(7.7)

    def test_types_and_help(self, metrics: EngineMetrics) -> None:
        families = list(text_string_to_metric_families(exposition(metrics)[0].decode()))
        assert {family.type for family in families} == {"counter", "gauge", "histogram"}
        assert all(family.name.startswith("inglenook_") and family.documentation for family in families)


def nanoseconds(metrics: EngineMetrics, call: str, number: int = 1000) -> float:
    """A call's cost: the best of several runs, since the machine may be busy."""
    names = {"m": metrics, "usage": USAGE, "timings": TIMINGS, "exposition": exposition}
    return min(timeit.repeat(call, number=number, repeat=10, globals=names)) / number * 1e9


# Here 0.4, 0.1 and 2.5 us, 26 us and 0.8 ms; the bounds are for slow machines.
def test_costs(metrics: EngineMetrics) -> None:
    assert nanoseconds(metrics, "m.step_submitted(1, 0, 8, 1.0); m.step_retired(1, 1.5)") < 8000
    assert nanoseconds(metrics, "m.set_gauges(1, 2, 3, 4, 5)") < 2000
    assert nanoseconds(metrics, "m.request_finished('stop', usage, timings, 1.0)", 200) < 50_000
    fill(metrics)
    assert nanoseconds(metrics, "m.snapshot()", 20) < 1_000_000
    assert nanoseconds(metrics, "exposition(m)", 1) < 50_000_000
