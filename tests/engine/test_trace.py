"""Traces: every B with its E, one track per thread, request and GPU, and next to nothing when off."""

from __future__ import annotations

import threading
import time
import timeit
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.engine import Engine
from engine.fake_table import FakeTable, small_limits
from engine.request import Request
from engine.trace import OFF, Trace, TraceRecorder, start_trace
from tests.engine.conftest import ByteVocabulary

THREADS, REQUESTS, GPU = 1, 2, 3
CALLS = (
    't.begin("step")',
    't.end("step")',
    't.begin("prefill", "r")',
    't.instant("token", "r")',
    't.counter("waiting", 3)',
    't.phase("r", "decode")',
    't.gpu_span("step", 1, 2)',
)


class Written:
    """A saved trace, read back."""

    def __init__(self, path: Path) -> None:
        self.contents = orjson.loads(path.read_bytes())
        everything: list[dict[str, Any]] = self.contents["traceEvents"]
        self.events = [event for event in everything if event["ph"] != "M"]
        self.tracks = {
            (event["pid"], event["args"]["name"]): event["tid"]
            for event in everything
            if event["name"] == "thread_name"
        }
        self.processes = {e["pid"]: e["args"]["name"] for e in everything if e["name"] == "process_name"}

    def on(self, pid: int, track: str) -> list[tuple[str, str]]:
        """(kind, name) of a track's events, in order."""
        tid = self.tracks[pid, track]
        return [(e["ph"], e["name"]) for e in self.events if (e["pid"], e["tid"]) == (pid, tid) and e["ph"] != "C"]

    def check_pairs(self) -> int:
        """Fail where a B and its E do not nest; how many pairs there are."""
        opened: dict[tuple[int, int], list[dict[str, Any]]] = {}
        pairs = 0
        for event in self.events:
            stack = opened.setdefault((event["pid"], event["tid"]), [])
            if event["ph"] == "B":
                stack.append(event)
            elif event["ph"] == "E":
                begin = stack.pop()
                assert begin["name"] == event["name"]
                assert begin["ts"] <= event["ts"]
                pairs += 1
        assert not any(opened.values())
        return pairs


@pytest.fixture
def trace(tmp_path: Path) -> TraceRecorder:
    return TraceRecorder(tmp_path / "trace.json")


def written(trace: TraceRecorder, tmp_path: Path) -> Written:
    trace.save()
    return Written(tmp_path / "trace.json")


def test_begins_and_ends_pair_and_count(trace: TraceRecorder, tmp_path: Path) -> None:
    for number in range(5):
        request_id = f"r{number}"
        trace.begin("request", request_id, detail=number)
        for phase in ("waiting", "prefill", "decode"):
            trace.phase(request_id, phase)
        for _ in range(3):
            trace.begin("step")
            trace.instant("token", request_id)
            trace.end("step")
        trace.phase(request_id, None)
        trace.end("request", request_id)
    found = written(trace, tmp_path)
    assert found.check_pairs() == 5 * (1 + 3) + 5 * 3
    assert Counter(kind for kind, _ in found.on(REQUESTS, "r0")) == {"B": 4, "E": 4, "i": 3}
    assert found.on(REQUESTS, "r3")[:4] == [("B", "request"), ("B", "waiting"), ("E", "waiting"), ("B", "prefill")]
    assert found.on(THREADS, "MainThread") == 15 * [("B", "step"), ("E", "step")]
    assert [e["args"] for e in found.events if e["name"] == "request" and e["ph"] == "B"][2] == {"detail": 2}


def test_what_is_open_at_the_end_is_closed_and_a_stray_end_is_left_out(trace: TraceRecorder, tmp_path: Path) -> None:
    trace.end("never begun")
    trace.end("request", "r")
    trace.begin("request", "r")
    trace.phase("r", "waiting")
    trace.end("waiting", "r")  # a phase is ended by phase() alone
    trace.phase("other", None)
    trace.begin("load")
    found = written(trace, tmp_path)
    assert found.check_pairs() == 3
    assert found.on(REQUESTS, "r") == [("B", "request"), ("B", "waiting"), ("E", "waiting"), ("E", "request")]
    assert found.on(REQUESTS, "other") == []


@pytest.mark.parametrize("num_pages", [64, 7])  # with seven, who came later gives way and waits again
def test_an_engines_steps_and_requests_pair_and_count(trace: TraceRecorder, tmp_path: Path, num_pages: int) -> None:
    engine = Engine(FakeTable(small_limits(num_pages=num_pages), delay=2), ByteVocabulary(), trace=trace)
    for number in range(4):
        prompt = tuple(range(number, number + 40))
        engine.add_request(Request(request_id=f"r{number}", prompt_ids=prompt, max_tokens=20 + number))
    num_steps = 0
    while engine.has_work:
        engine.step()
        num_steps += 1
    assert bool(engine.state.num_preempted) == (num_pages == 7)
    found = written(trace, tmp_path)
    found.check_pairs()
    kinds = Counter(found.on(THREADS, "MainThread"))
    assert kinds["X", "step"] == num_steps
    assert kinds["X", "retire"] >= engine.state.table.last_submitted
    phases: Counter[tuple[str, str]] = Counter()
    for number in range(4):
        events = Counter(found.on(REQUESTS, f"r{number}"))
        assert events["i", "token"] == 20 + number
        phases += events
    turns = 4 + engine.state.num_preempted
    assert phases["B", "waiting"] == phases["B", "prefill"] == phases["B", "decode"] == turns


def test_ending_an_outer_span_ends_the_inner_one_too(trace: TraceRecorder, tmp_path: Path) -> None:
    trace.begin("outer")
    trace.begin("inner")
    trace.end("outer")
    trace.begin("after")
    found = written(trace, tmp_path)
    assert found.check_pairs() == 3
    assert found.on(THREADS, "MainThread")[:4] == [("B", "outer"), ("B", "inner"), ("E", "inner"), ("E", "outer")]


def test_the_ring_keeps_the_newest_and_still_pairs(tmp_path: Path) -> None:
    trace = TraceRecorder(tmp_path / "trace.json", max_events=101)
    for _ in range(500):
        trace.begin("a")
        trace.begin("b")
        trace.end("b")
        trace.end("a")
    found = written(trace, tmp_path)
    assert found.check_pairs() == 50
    assert found.contents["otherData"]
    roomy = TraceRecorder(tmp_path / "trace.json")
    roomy.instant("once")
    assert not written(roomy, tmp_path).contents["otherData"]


def test_one_track_per_thread_even_where_the_system_reuses_its_number(trace: TraceRecorder, tmp_path: Path) -> None:
    def work() -> None:
        with trace.span("work", detail="quick"):
            pass

    for number in range(4):
        thread = threading.Thread(target=work, name=f"worker {number}")
        thread.start()
        thread.join()
    found = written(trace, tmp_path)
    for number in range(4):
        assert found.on(THREADS, f"worker {number}") == [("X", "work")]
    assert found.processes == {THREADS: "Threads", REQUESTS: "Requests", GPU: "GPU"}
    assert len(set(found.tracks.values())) >= 4


def test_spans_have_their_extent_in_microseconds(trace: TraceRecorder, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), trace.span("slow"):
        time.sleep(0.02)
        raise ZeroDivisionError
    now = time.perf_counter_ns()
    trace.gpu_span("step", now - 5_000_000, now - 2_000_000)
    found = written(trace, tmp_path)
    [slow] = [event for event in found.events if event["name"] == "slow"]
    [step] = [event for event in found.events if event["name"] == "step"]
    assert slow["ph"] == step["ph"] == "X"
    assert 15_000 < slow["dur"] < 2_000_000
    assert step["dur"] == 3000
    assert step["pid"] == GPU
    assert (GPU, "Steps") in found.tracks
    assert [event["ts"] for event in found.events] == sorted(event["ts"] for event in found.events)
    assert slow["ts"] >= 0


def test_counters_are_values_over_time(trace: TraceRecorder, tmp_path: Path) -> None:
    for value in (1, 5, 2):
        trace.counter("waiting", value)
    found = written(trace, tmp_path)
    assert [(e["ph"], e["args"]) for e in found.events] == [("C", {"value": value}) for value in (1, 5, 2)]


def test_an_id_from_outside_cannot_spoil_the_file(trace: TraceRecorder, tmp_path: Path) -> None:
    trace.phase("GPU", "waiting")
    trace.phase('"\ud800"', "waiting")
    found = written(trace, tmp_path)
    assert found.check_pairs() == 2
    assert (REQUESTS, '"?"') in found.tracks


def test_saving_while_others_record(trace: TraceRecorder, tmp_path: Path) -> None:
    stop = threading.Event()

    def record() -> None:
        while not stop.is_set():
            trace.begin("step")
            trace.phase("r", "decode")
            trace.end("step")
            time.sleep(0)

    threads = [threading.Thread(target=record) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            written(trace, tmp_path).check_pairs()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_off_without_a_path() -> None:
    assert start_trace(None) is OFF
    assert not OFF.enabled
    with pytest.raises(ZeroDivisionError), OFF.span("slow"):
        raise ZeroDivisionError
    OFF.save()


def test_on_with_one(tmp_path: Path) -> None:
    trace = start_trace(tmp_path / "t.json")
    assert trace.enabled
    trace.save()
    assert Written(tmp_path / "t.json").events == []


def nanoseconds(call: str, trace: Trace) -> float:
    """A call's cost: the best of several runs, since the machine may be busy."""
    return min(timeit.repeat(call, number=2000, repeat=20, globals={"t": trace})) / 2000 * 1e9


# Here off costs 30 to 50 ns and on 110 to 270; the bounds are for slow machines.
@pytest.mark.parametrize("call", CALLS)
def test_off_costs_next_to_nothing(call: str) -> None:
    assert nanoseconds(call, OFF) < 500


@pytest.mark.parametrize("call", CALLS)
def test_on_costs_little(call: str, trace: TraceRecorder) -> None:
    assert nanoseconds(call, trace) < 5000


def test_a_span_costs_three_calls(trace: TraceRecorder) -> None:
    call = 'with t.span("step"): pass'
    assert nanoseconds(call, OFF) < 1500
    assert nanoseconds(call, trace) < 15_000
