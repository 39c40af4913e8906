"""Trace: what happened when, in a ring of events, written as Chrome trace JSON for the Perfetto UI.

Owns the events and their tracks: one per thread, one per request, one for the GPU. Knows nothing of what the names
mean. Off is the default and is OFF, an object whose calls do nothing; what is on is a TraceRecorder, made by the entry
point (start_trace) and handed down. Any thread may record; the entry point saves at the end.

Who calls what (request ids are given as they are; build no strings for a trace that may be off):

    a caller's thread     instant("received", request_id)             ThreadedEngine.add_request
    engine thread         phase(request_id, "waiting")                enqueue; preempted
                          phase(request_id, "prefill")                admitted
                          phase(request_id, "decode")                 its whole prompt is submitted
                          instant("token", request_id)                each commit
                          phase(request_id, None)                     finished, for whatever reason
                          with span("step"), span("load"), ...        around an action, a load, a retirement
                          counter("waiting", n), ("pages free", n)    once a step
                          gpu_span(label, start_ns, end_ns)           a timed step has retired
    stream-back thread    with span("deliver", len(batch))            around a batch of callbacks

The entry point: trace = start_trace(path or None), and trace.save() once the engine is shut down. The file is in the
Trace Event Format that Chrome and Perfetto read: phases B, E, X, i, C and M, times in microseconds.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

import orjson

MAX_EVENTS = 250_000
"""Events kept, the newest: a minute or more of full speed."""

Detail = int | float | str | None
Track = int | str
"""A thread's number, or a request's id."""

Event = tuple[Literal["B", "E", "X", "i", "C", "P"], int, Track, str, Detail, int]
"""Kind (P: a request's next phase, "" for none), start in ns, track, name, detail (of C: value), length in ns of X."""

GPU_TRACK = 0
_THREADS_PID, _REQUESTS_PID, _GPU_PID = 1, 2, 3


class Trace:
    """A trace that is off: takes every call and keeps nothing."""

    enabled = False

    def begin(self, name: str, request_id: str | None = None, detail: Detail = None) -> None:
        """Open a span on the request's track or, without one, the calling thread's."""

    def end(self, name: str, request_id: str | None = None) -> None:
        """Close the span of that name on the same track."""

    def instant(self, name: str, request_id: str | None = None, detail: Detail = None) -> None:
        """Mark a moment."""

    def counter(self, name: str, value: float) -> None:
        """Record a value that is drawn as a curve."""

    def phase(self, request_id: str, name: str | None) -> None:
        """Move a request on: close its last phase, open this one. None closes only."""

    def span(self, name: str, detail: Detail = None) -> Span:
        """A context whose extent becomes a span on the calling thread's track, exception or not."""
        return _NO_SPAN

    def gpu_span(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record what the device did, in nanoseconds of time.perf_counter_ns()."""

    def save(self) -> None:
        """Write the file. Raises OSError."""


class Span:
    """What span() gives; of a trace that is off, it does nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End; exceptions pass."""


_NO_SPAN: Final = Span()
OFF: Final = Trace()


class TraceRecorder(Trace):
    """Keeps the newest `max_events` events; save() writes them to `path`."""

    enabled = True

    def __init__(self, path: Path, max_events: int = MAX_EVENTS) -> None:
        self._path = path
        self._started_ns = time.perf_counter_ns()
        # Appending to a deque is atomic under the GIL, so recording takes no lock.
        self._events: deque[Event] = deque(maxlen=max_events)
        self._threads: dict[int, str] = {}
        self._next_thread = itertools.count(1)
        self._local = threading.local()

    def begin(self, name: str, request_id: str | None = None, detail: Detail = None) -> None:
        track = self.thread_track() if request_id is None else request_id
        self._events.append(("B", time.perf_counter_ns(), track, name, detail, 0))

    def end(self, name: str, request_id: str | None = None) -> None:
        track = self.thread_track() if request_id is None else request_id
        self._events.append(("E", time.perf_counter_ns(), track, name, None, 0))

    def instant(self, name: str, request_id: str | None = None, detail: Detail = None) -> None:
        track = self.thread_track() if request_id is None else request_id
        self._events.append(("i", time.perf_counter_ns(), track, name, detail, 0))

    def counter(self, name: str, value: float) -> None:
        self._events.append(("C", time.perf_counter_ns(), GPU_TRACK, name, value, 0))

    def phase(self, request_id: str, name: str | None) -> None:
        self._events.append(("P", time.perf_counter_ns(), request_id, name or "", None, 0))

    def span(self, name: str, detail: Detail = None) -> Span:
        return _RecordedSpan(self, name, detail)

    def gpu_span(self, name: str, start_ns: int, end_ns: int) -> None:
        self._events.append(("X", start_ns, GPU_TRACK, name, None, end_ns - start_ns))

    def thread_span(self, name: str, start_ns: int, end_ns: int, detail: Detail) -> None:
        """Record a span of the calling thread that is over."""
        self._events.append(("X", start_ns, self.thread_track(), name, detail, end_ns - start_ns))

    def save(self) -> None:
        # A copy of a deque gives the GIL to nobody, so that none can append in its midst.
        events = self._events.copy()
        full = len(events) == events.maxlen
        contents = {
            "traceEvents": chrome_events(events, dict(self._threads), self._started_ns),
            "displayTimeUnit": "ms",
            "otherData": {"note": "Older events were dropped."} if full else {},
        }
        self._path.write_bytes(orjson.dumps(contents))

    def thread_track(self) -> int:
        """The calling thread's number here. (The system gives a thread's own number again once it has ended.)"""
        try:
            track: int = self._local.track
        except AttributeError:
            track = self._local.track = next(self._next_thread)
            self._threads[track] = threading.current_thread().name
        return track


class _RecordedSpan(Span):
    """One event with its length, made at the end: what the ring drops, it drops whole."""

    __slots__ = ("_detail", "_name", "_recorder", "_start_ns")

    def __init__(self, recorder: TraceRecorder, name: str, detail: Detail) -> None:
        self._recorder = recorder
        self._name = name
        self._detail = detail

    def __enter__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._recorder.thread_span(self._name, self._start_ns, time.perf_counter_ns(), self._detail)


def start_trace(path: Path | None) -> Trace:
    """A trace that save() writes to `path`; OFF without one."""
    return OFF if path is None else TraceRecorder(path)


def chrome_events(events: Iterable[Event], threads: Mapping[int, str], started_ns: int) -> list[dict[str, object]]:
    """Events as Chrome trace JSON has them, in the order of time, after the names of their tracks.

    Each B gets its E: phases become pairs, an E whose B the ring has dropped is left out, and what is open at the end
    ends with the last event.
    """
    return _Writer(threads, started_ns).write(sorted(events, key=lambda event: event[1]))


class _Writer:
    """Turns events into dicts. Keeps each track's place in the file, and what is open on it: (name, is a phase)."""

    def __init__(self, threads: Mapping[int, str], started_ns: int) -> None:
        self._started_ns = started_ns
        self._written: list[dict[str, object]] = []
        self._places: dict[Track, tuple[int, int]] = {}
        self._open: dict[Track, list[tuple[str, bool]]] = {}
        for pid, name in ((_THREADS_PID, "Threads"), (_REQUESTS_PID, "Requests"), (_GPU_PID, "GPU")):
            self._written.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        self._place(GPU_TRACK, _GPU_PID, 1, "Steps")
        for number, name in threads.items():
            self._place(number, _THREADS_PID, number, name)

    def write(self, events: list[Event]) -> list[dict[str, object]]:
        """Everything, from events in the order of time."""
        last = self._started_ns
        for kind, at, track, name, detail, length in events:
            last = max(last, at + length)
            if track not in self._places:
                self._place(track, _REQUESTS_PID, len(self._places), str(track))
            if kind == "P":
                self._close(track, at, None)
                if name:
                    self._begin(track, at, name, None, is_phase=True)
            elif kind == "B":
                self._begin(track, at, name, detail, is_phase=False)
            elif kind == "E":
                self._close(track, at, name)
            else:
                self._put(kind, at, track, name, detail, length)
        for track in self._open:
            while self._open[track]:
                self._end_innermost(track, last)
        return self._written

    def _begin(self, track: Track, at: int, name: str, detail: Detail, *, is_phase: bool) -> None:
        self._open.setdefault(track, []).append((name, is_phase))
        self._put("B", at, track, name, detail)

    def _close(self, track: Track, at: int, name: str | None) -> None:
        """End the innermost span of that name (None: the phase), what is open within it first; nothing if none is."""
        opened = self._open.get(track, [])
        for index in reversed(range(len(opened))):
            opened_name, is_phase = opened[index]
            if is_phase if name is None else opened_name == name and not is_phase:
                while len(opened) > index:
                    self._end_innermost(track, at)
                return

    def _end_innermost(self, track: Track, at: int) -> None:
        name, _ = self._open[track].pop()
        self._put("E", at, track, name)

    def _put(self, kind: str, at: int, track: Track, name: str, detail: Detail = None, length: int = 0) -> None:
        pid, tid = self._places[track]
        event: dict[str, object] = {"ph": kind, "ts": self._microseconds(at), "pid": pid, "tid": tid, "name": name}
        if kind == "X":
            event["dur"] = length / 1000
        elif kind == "i":
            event["s"] = "t"  # drawn across its own track only
        if detail is not None:
            event["args"] = {"value" if kind == "C" else "detail": detail}
        self._written.append(event)

    def _microseconds(self, at: int) -> float:
        return (at - self._started_ns) / 1000

    def _place(self, track: Track, pid: int, tid: int, name: str) -> None:
        self._places[track] = (pid, tid)
        name = name.encode(errors="replace").decode()  # JSON has no room for half a surrogate pair in a client's id
        self._written.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
