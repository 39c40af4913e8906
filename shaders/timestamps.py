"""When the device began and ended each step: timestamp queries around its compute pass, in the host's time.

Owns a query set, the small buffers that bring its values back, and the way from the device's clock to the host's. Used
only while a trace is recorded. Knows neither steps nor requests, only labels. The engine's background thread.

    stamps = timer.next                          None: all are in flight, this step goes untimed
    recorder.submit(commands, stamps=stamps)     begins its pass with stamps.descriptor, then calls stamps.record()
    timer.submitted(stamps, label)               ...the step retires, which polls the device...
    timer.collect()                              the spans that have come back
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections import deque
from collections.abc import Callable
from ctypes import c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

from shaders.device import Buffer, Gpu, _address
from shaders.recorder import MappedBuffer, Recorder, _function

_FEATURE = "timestamp-query"
_BYTES = 16
"""Two u64 per step: begin and end."""

_RESOLVE_STRIDE = 256
"""Where the values of a query set may be written: WebGPU's QUERY_RESOLVE_BUFFER_ALIGNMENT."""

_DRIFT = 1e-4
"""How fast the two clocks may part: 100 ppm, twice what a quartz is allowed."""


@dataclass(frozen=True, slots=True)
class GpuSpan:
    """What one submit kept the device busy with, in nanoseconds of time.perf_counter_ns()."""

    label: str
    start_ns: int
    end_ns: int


class Stamps:
    """The two queries of one step in flight. `descriptor`: address of the native compute pass descriptor with them."""

    def __init__(self, record: Callable[[int], None], descriptor: int, mapped: MappedBuffer, keep: object) -> None:
        self.descriptor = descriptor
        self.mapped = mapped
        self._record = record
        self._keep = keep  # the native structs behind the address

    def record(self, encoder: int) -> None:
        """After the pass: have its two values written where the host reads them."""
        self._record(encoder)


class StepTimer:
    """Times up to `depth` steps in flight. Make one with step_timer(); release() gives everything back."""

    def __init__(self, gpu: Gpu, recorder: Recorder, depth: int) -> None:
        from wgpu.backends.wgpu_native import lib
        from wgpu.backends.wgpu_native._ffi import lib_path

        native = ctypes.PyDLL(lib_path)
        resolve = (c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_uint64)
        copy = (c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_uint64)
        self._resolve = _function(native, "wgpuCommandEncoderResolveQuerySet", None, *resolve)
        self._copy = _function(native, "wgpuCommandEncoderCopyBufferToBuffer", None, *copy)
        self._gpu = gpu
        self._queries = gpu.device.create_query_set(label="step times", type="timestamp", count=2 * depth)
        self._resolved = gpu.device.create_buffer(
            label="step times", size=_RESOLVE_STRIDE * depth, usage="QUERY_RESOLVE|COPY_SRC"
        )
        self._readbacks = [gpu.readback(f"step times {index}", _BYTES) for index in range(depth)]
        self._free = deque(self._stamps(recorder, index, buffer) for index, buffer in enumerate(self._readbacks))
        self._pending: deque[tuple[Stamps, str]] = deque()
        self._clock = _DeviceClock(float(lib.wgpuQueueGetTimestampPeriod(gpu.device.queue._internal)))
        self._calibrate()

    @property
    def next(self) -> Stamps | None:
        """Stamps for the next submit; None while all are in flight."""
        return self._free[0] if self._free else None

    def submitted(self, stamps: Stamps, label: str) -> None:
        """The step that `stamps` was recorded in has been submitted; `stamps` is what `next` last gave."""
        assert stamps is self._free[0], "stamps were submitted out of order"
        self._free.popleft()
        stamps.mapped.request(_BYTES)
        self._pending.append((stamps, label))

    def collect(self) -> list[GpuSpan]:
        """Spans of the steps whose values have arrived, oldest first. Does not poll; retiring a step has done so."""
        seen_ns = time.perf_counter_ns()
        arrived: list[tuple[str, int, int]] = []
        while self._pending and self._pending[0][0].mapped.answered:
            stamps, label = self._pending.popleft()
            if not stamps.mapped.ready:
                continue  # The device is gone. The runner finds out for itself; these stamps are not used again.
            begin, end = struct.unpack("<QQ", stamps.mapped.take(_BYTES))
            self._free.append(stamps)
            if 0 < begin <= end:  # drivers report a failed query as zero
                self._clock.saw(end, seen_ns)
                arrived.append((label, begin, end))
        return [GpuSpan(label, *self._clock.to_host(begin, end)) for label, begin, end in arrived]

    def release(self) -> None:
        """Free the queries and buffers. Nothing may be in flight; the timer is of no use afterwards."""
        assert not self._pending, "released with timed steps in flight"
        self._free.clear()
        self._gpu.release(self._readbacks)
        self._resolved.destroy()
        self._queries.destroy()

    def _calibrate(self) -> None:
        """Time a few empty passes, so that the first step is already put where it belongs."""
        for _ in range(3):
            encoder = self._gpu.device.create_command_encoder()
            writes = {"query_set": self._queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
            encoder.begin_compute_pass(timestamp_writes=writes).end()
            encoder.resolve_query_set(self._queries, 0, 2, self._resolved, 0)
            self._gpu.device.queue.submit([encoder.finish()])
            self._gpu.wait()
            seen_ns = time.perf_counter_ns()
            begin, end = struct.unpack("<QQ", self._gpu.device.queue.read_buffer(self._resolved, 0, _BYTES))
            if 0 < begin <= end:
                self._clock.saw(end, seen_ns)

    def _stamps(self, recorder: Recorder, index: int, readback: Buffer) -> Stamps:
        from wgpu.backends.wgpu_native import ffi

        writes = ffi.new("WGPUPassTimestampWrites *")
        writes.querySet = self._queries._internal
        writes.beginningOfPassWriteIndex, writes.endOfPassWriteIndex = 2 * index, 2 * index + 1
        descriptor = ffi.new("WGPUComputePassDescriptor *")
        descriptor.timestampWrites = writes
        queries, resolved = _address(self._queries._internal), _address(self._resolved._internal)
        target, offset = readback.pointer, _RESOLVE_STRIDE * index

        def record(encoder: int) -> None:
            self._resolve(encoder, queries, 2 * index, 2, resolved, offset)
            self._copy(encoder, resolved, offset, target, 0, _BYTES)

        return Stamps(record, _address(descriptor), MappedBuffer(recorder, readback), (writes, descriptor))


def step_timer(gpu: Gpu, recorder: Recorder, depth: int) -> StepTimer | None:
    """A timer for `depth` steps in flight; None where the device has no timestamps."""
    return StepTimer(gpu, recorder, depth) if _FEATURE in gpu.features else None


class _DeviceClock:
    """Where the device's ticks lie on the host's clock.

    No call says so, but a step has ended by the time that the host sees it. The least delay seen so far bounds the
    distance of the clocks from above, so a span is never told to end after it was seen, nor to start before its submit;
    it may be told late by that delay. Spans never overlap: one may be told short where the distance was improved.
    """

    def __init__(self, tick_ns: float) -> None:
        self._tick_ns = tick_ns
        self._base: int | None = None
        self._last = 0
        self._distance = 0
        self._seen_ns = 0
        self._told_ns = 0

    def saw(self, end: int, seen_ns: int) -> None:
        """A step that ended at tick `end` was seen to have ended at `seen_ns`. Call in the order of the steps."""
        if self._base is None or end < self._last:  # the first, or a counter of few bits has wrapped
            self._base = end
            self._distance = seen_ns
        else:
            allowed = self._distance + int((seen_ns - self._seen_ns) * _DRIFT)
            self._distance = min(allowed, seen_ns - self._since(end))
        self._last, self._seen_ns = end, seen_ns

    def to_host(self, begin: int, end: int) -> tuple[int, int]:
        """Ticks of a step that was seen, as nanoseconds of the host's clock. Call in the order of the steps."""
        start_ns = max(self._told_ns, self._since(begin) + self._distance)
        self._told_ns = max(start_ns, self._since(end) + self._distance)
        return start_ns, self._told_ns

    def _since(self, ticks: int) -> int:
        return int((ticks - (self._base or 0)) * self._tick_ns)
