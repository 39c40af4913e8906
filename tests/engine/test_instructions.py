"""What each instruction does to running streams, as ARCHITECTURE.md has it, and the request for metrics."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import EngineStopped
from engine.fake_loader import fake_loader
from engine.generate import load_blocking
from engine.loading import LoadOptions, LoadProgress
from engine.metrics import MetricsSnapshot
from engine.threaded import ThreadedEngine
from tests.engine.conftest import WAIT_S, Caller, outcome

A, B = LoadOptions(model=Path("a.gguf")), LoadOptions(model=Path("b.gguf"))
LENGTH = 40
Start = Callable[..., ThreadedEngine]


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[ThreadedEngine] = []

    def make(*, loaded: bool = True, **options) -> ThreadedEngine:
        engines.append(ThreadedEngine(fake_loader(**options)))
        if loaded:
            load_blocking(engines[-1], A)
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown(WAIT_S)


def metrics(engine: ThreadedEngine) -> MetricsSnapshot:
    snapshots: queue.Queue[MetricsSnapshot] = queue.Queue()
    engine.query_metrics(snapshots.put)
    return snapshots.get(timeout=WAIT_S)


def nothing(_event: object) -> None:
    pass


GOES_ON = ("length", LENGTH)
ENDS = ("abort", None)


@pytest.mark.parametrize(
    "instruct, effect",
    [
        (lambda engine: Caller(engine, "other", max_tokens=3), GOES_ON),
        (lambda engine: engine.abort_request("other"), GOES_ON),
        (lambda engine: engine.abort_request("a"), ENDS),
        (lambda engine: engine.load(A, nothing), GOES_ON),
        (lambda engine: engine.load(B, nothing), ENDS),
        (lambda engine: engine.unload(), ENDS),
        (lambda engine: engine.reload(nothing), GOES_ON),
        (lambda engine: engine.reset(), ENDS),
        (lambda engine: engine.forget("a chat"), GOES_ON),
        (lambda engine: engine.forget(None), GOES_ON),
        (lambda engine: engine.query_metrics(nothing), GOES_ON),
        (lambda engine: engine.shutdown(), ENDS),
    ],
    ids=[
        *"add abort-another abort load-the-same load-another unload reload reset".split(),
        *"forget-a-chat forget-everything metrics shutdown".split(),
    ],
)
def test_effect_on_a_running_stream(
    start: Start, instruct: Callable[[ThreadedEngine], object], effect: tuple[str, int | None]
) -> None:
    engine = start(endless=True, step_s=0.001, delay=2)
    undisturbed = Caller(engine, "before", max_tokens=LENGTH)
    undisturbed.end()
    caller = Caller(engine, "a", max_tokens=LENGTH)
    for _ in range(3):
        caller.next()
    instruct(engine)
    reason, count = effect
    assert caller.end().finish_reason == reason
    assert count is None or sum(len(delta.token_ids) for delta in caller.seen) == count
    assert undisturbed.text.startswith(caller.text)
    assert count is None or caller.text == undisturbed.text


def test_metrics_count_whole_steps_of_a_running_stream(start: Start) -> None:
    engine = start(endless=True, step_s=0.001)
    caller = Caller(engine, "a", max_tokens=LENGTH)
    caller.next()
    snapshot = metrics(engine)
    assert (snapshot["requests_running"], snapshot["requests_waiting"]) == (1, 0)
    assert snapshot["pages_free"] + snapshot["pages_cached"] + snapshot["pages_used"] == snapshot["pages_total"] > 0
    caller.end()
    assert metrics(engine)["completion_tokens_sum"] == LENGTH


def test_metrics_of_a_request_that_was_added_before_count_it(start: Start) -> None:
    """Instructions are obeyed in order; the gauges are those of the moment, not of the last step."""
    engine = start(endless=True, step_s=0.05)
    Caller(engine, "a")
    snapshot = metrics(engine)
    assert snapshot["requests_running"] + snapshot["requests_prefilling"] + snapshot["requests_waiting"] == 1
    engine.abort_request("a")
    snapshot = metrics(engine)
    assert snapshot["requests_running"] + snapshot["requests_prefilling"] + snapshot["requests_waiting"] == 0
    assert snapshot["requests_finished"]["abort"] == 1


def test_metrics_arrive_on_the_stream_back_thread(start: Start) -> None:
    names: queue.Queue[str] = queue.Queue()
    start().query_metrics(lambda _: names.put(threading.current_thread().name))
    assert names.get(timeout=WAIT_S) == "inglenook-stream-back"


def test_metrics_without_a_model(start: Start) -> None:
    engine = start(loaded=False)
    assert metrics(engine)["pages_total"] == 0
    load_blocking(engine, A)
    Caller(engine, "a", max_tokens=2).end()
    assert metrics(engine)["pages_total"] > 0
    engine.unload()
    assert metrics(engine)["pages_total"] == 0


def test_metrics_while_a_model_loads_do_not_wait_for_it(start: Start) -> None:
    engine = start(loaded=False, load_s=3.0)
    events: queue.Queue = queue.Queue()
    engine.load(A, events.put)
    assert isinstance(events.get(timeout=WAIT_S), LoadProgress)
    asked = time.monotonic()
    assert metrics(engine)["requests_running"] == 0
    assert time.monotonic() - asked < 2.0
    engine.unload()
    assert outcome(events).cancelled


def test_metrics_after_shutdown_are_given_at_once(start: Start) -> None:
    engine = start()
    Caller(engine, "a", max_tokens=2).end()
    engine.shutdown()
    found: list[MetricsSnapshot] = []
    engine.query_metrics(found.append)
    assert found[0]["completion_tokens_sum"] == 2


def test_metrics_asked_as_the_engine_ends_are_answered(start: Start) -> None:
    for _ in range(20):
        engine = start(endless=True)
        Caller(engine, "a")
        found: list[MetricsSnapshot] = []
        engine.query_metrics(found.append)
        engine.shutdown(WAIT_S)
        assert len(found) == 1


def test_a_listener_to_metrics_that_raises_does_no_harm(start: Start) -> None:
    engine = start()

    def broken(_: MetricsSnapshot) -> None:
        raise RuntimeError("the caller's own fault")

    engine.query_metrics(broken)
    assert Caller(engine, "a", max_tokens=2).end().finish_reason == "length"


def test_what_comes_after_the_end_says_so_by_its_type(start: Start) -> None:
    engine = start()
    engine.shutdown()
    assert Caller(engine, "a").end().error_type == EngineStopped.__name__


def test_a_second_request_with_an_open_id_says_so_by_its_type(start: Start) -> None:
    engine = start(endless=True, step_s=0.001)
    Caller(engine, "a").next()
    assert Caller(engine, "a").end().error_type == "InvalidParameter"
