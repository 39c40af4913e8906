"""Records and submits a step's work with the GIL held, so that a busy Python thread beside it cannot slow it down.

cffi gives the GIL away on every call; with 150 dispatches a step, each call would then wait for whoever took it. So
recording goes through ctypes.PyDLL on the library that wgpu has loaded. Two calls give the GIL away: the wait for the
device, and the submit of a software adapter, which returns only when earlier work is done. Raw calls skip wgpu's error
checks: what is recorded here was checked when it was bound (shaders/kernel.py) and when its grid was made
(shaders/run.py). The engine's background thread.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from shaders.device import Buffer, Gpu, _address
from shaders.kernel import Bound

if TYPE_CHECKING:
    from shaders.timestamps import Stamps

Command = tuple[c_void_p | None, c_void_p, c_size_t, "ctypes.Array[c_uint32]", int, int, int]
"""(pipeline or None for the last one, bind group, number of offsets, offsets, x, y, z): see command()."""

HANDOVER_S = 0.0005
"""While the engine waits for the device, a busy thread must hand the interpreter over this soon."""

HOLD_S = 0.005
"""While the engine holds the interpreter, nobody takes it away for this long (Python's default): a step's host work is
shorter, and losing the GIL in its midst costs a wait for a thread that the system may have put to sleep."""


class _StringView(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("length", c_size_t))


_MAP_CALLBACK = ctypes.CFUNCTYPE(None, c_uint32, _StringView, c_void_p, c_void_p)


class _MapCallbackInfo(ctypes.Structure):
    _fields_ = (
        ("next_in_chain", c_void_p),
        ("mode", c_uint32),
        ("callback", _MAP_CALLBACK),
        ("userdata1", c_void_p),
        ("userdata2", c_void_p),
    )


class _Future(ctypes.Structure):
    _fields_ = (("id", c_uint64),)


_MAP_READ = 1
_ALLOW_PROCESS_EVENTS = 2
_SUCCESS = 1


class Copy(NamedTuple):
    """Bytes to copy between buffers, before or after a step's dispatches; sizes and offsets are multiples of 4."""

    source: int
    target: int
    size: int
    source_offset: int = 0
    target_offset: int = 0


def command(bound: Bound, grid: tuple[int, int, int], *, same_pipeline: bool = False) -> Command:
    """A dispatch in native terms, made once and recorded many times; same_pipeline keeps the last dispatch's."""
    offsets = (c_uint32 * len(bound.offsets))(*bound.offsets)
    x, y, z = grid  # as plain numbers: a u32 is what ctypes makes of an int, faster than of a c_uint32
    return (
        None if same_pipeline else c_void_p(bound.pipeline_pointer),
        c_void_p(bound.group_pointer),
        c_size_t(len(bound.offsets)),
        offsets,
        x,
        y,
        z,
    )


class Recorder:
    """The raw calls of one device. A step is one call of submit().

    `waited_ns` grows by the time that calls spent waiting for the device (or, afterwards, for the GIL).
    """

    def __init__(self, gpu: Gpu) -> None:
        from wgpu.backends.wgpu_native import ffi, lib
        from wgpu.backends.wgpu_native._ffi import lib_path

        self._gpu = gpu
        self._cffi = lib
        self._device = _address(gpu.device._internal)
        self._device_handle = gpu.device._internal
        self._queue = _address(gpu.device.queue._internal)
        self._queue_handle = gpu.device.queue._internal
        self._submit_blocks = gpu.adapter.software
        self.waited_ns = 0
        native = ctypes.PyDLL(lib_path)
        self._create_encoder = _function(native, "wgpuDeviceCreateCommandEncoder", c_void_p, c_void_p, c_void_p)
        self._begin_pass = _function(native, "wgpuCommandEncoderBeginComputePass", c_void_p, c_void_p, c_void_p)
        # These three run hundreds of times a step. Without declared types ctypes takes the ready-made objects of
        # command() as they are, which is a third cheaper.
        self._set_pipeline = _function(native, "wgpuComputePassEncoderSetPipeline", None)
        self._set_group = _function(native, "wgpuComputePassEncoderSetBindGroup", None)
        self._dispatch = _function(native, "wgpuComputePassEncoderDispatchWorkgroups", None)
        self._end_pass = _function(native, "wgpuComputePassEncoderEnd", None, c_void_p)
        self._release_pass = _function(native, "wgpuComputePassEncoderRelease", None, c_void_p)
        self._copy = _function(
            native,
            "wgpuCommandEncoderCopyBufferToBuffer",
            None,
            c_void_p,
            c_void_p,
            c_uint64,
            c_void_p,
            c_uint64,
            c_uint64,
        )
        self._finish = _function(native, "wgpuCommandEncoderFinish", c_void_p, c_void_p, c_void_p)
        self._release_encoder = _function(native, "wgpuCommandEncoderRelease", None, c_void_p)
        self._release_commands = _function(native, "wgpuCommandBufferRelease", None, c_void_p)
        self._submit = _function(native, "wgpuQueueSubmitForIndex", c_uint64, c_void_p, c_size_t, c_void_p)
        self._poll = _function(native, "wgpuDevicePoll", c_uint32, c_void_p, c_uint32, c_void_p)
        self._write = _function(native, "wgpuQueueWriteBuffer", None, c_void_p, c_void_p, c_uint64, c_void_p, c_size_t)
        self._map = _function(
            native, "wgpuBufferMapAsync", _Future, c_void_p, c_uint64, c_size_t, c_size_t, _MapCallbackInfo
        )
        self._mapped_range = _function(native, "wgpuBufferGetConstMappedRange", c_void_p, c_void_p, c_size_t, c_size_t)
        self._unmap = _function(native, "wgpuBufferUnmap", None, c_void_p)
        self._index = ffi.new("WGPUSubmissionIndex *")
        self._commands = ffi.new("WGPUCommandBuffer[1]")
        self._cast = ffi.cast

    def submit(
        self,
        commands: Sequence[Command],
        *,
        before: Sequence[Copy] = (),
        after: Sequence[Copy] = (),
        stamps: Stamps | None = None,
    ) -> int:
        """Record copies, dispatches and copies in order; submit them and return the device's number for that.

        With `stamps` the device notes when the dispatches began and ended.
        """
        encoder: int = self._create_encoder(self._device, None)
        for copy in before:
            self._copy(encoder, copy.source, copy.source_offset, copy.target, copy.target_offset, copy.size)
        self._record(encoder, commands, None if stamps is None else stamps.descriptor)
        if stamps is not None:
            stamps.record(encoder)
        for copy in after:
            self._copy(encoder, copy.source, copy.source_offset, copy.target, copy.target_offset, copy.size)
        recorded: int = self._finish(encoder, None)
        self._release_encoder(encoder)
        if self._submit_blocks:
            self._commands[0] = self._cast("WGPUCommandBuffer", recorded)
            with self._gpu.submitting:
                self._gpu.require()  # the GIL may have gone since the caller asked
                with self._released():
                    index: int = self._cffi.wgpuQueueSubmitForIndex(self._queue_handle, 1, self._commands)
        else:
            index = self._submit(self._queue, 1, ctypes.byref(c_void_p(recorded)))
        self._release_commands(recorded)
        return index

    def _record(self, encoder: int, commands: Sequence[Command], descriptor: int | None) -> None:
        compute = c_void_p(self._begin_pass(encoder, descriptor))
        set_pipeline, set_group, dispatch = self._set_pipeline, self._set_group, self._dispatch
        for pipeline, group, num_offsets, offsets, x, y, z in commands:
            if pipeline is not None:
                set_pipeline(compute, pipeline)
            set_group(compute, 0, group, num_offsets, offsets)
            dispatch(compute, x, y, z)
        self._end_pass(compute)
        self._release_pass(compute)

    def write(self, buffer: int, offset: int, address: int, size: int) -> None:
        """Queue host bytes to be written ahead of the next submit; they are copied before this returns."""
        self._write(self._queue, buffer, offset, address, size)

    def poll(self) -> None:
        """Let finished work call back, without waiting and with the GIL held."""
        self._poll(self._device, 0, None)

    def wait(self, index: int) -> None:
        """Wait for a submission. The GIL is free meanwhile."""
        self._index[0] = index
        with self._released():
            self._cffi.wgpuDevicePoll(self._device_handle, 1, self._index)

    @contextmanager
    def _released(self) -> Iterator[None]:
        """Around a call that gives the GIL away; what it spent off the processor is added to `waited_ns`."""
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        sys.setswitchinterval(HANDOVER_S)
        yield
        sys.setswitchinterval(HOLD_S)
        off = time.perf_counter_ns() - wall - (time.thread_time_ns() - cpu)
        self.waited_ns += max(0, off)


class MappedBuffer:
    """A small buffer that the host reads after a step: request() after the submit, take() once it is ready."""

    def __init__(self, recorder: Recorder, buffer: Buffer) -> None:
        self._recorder = recorder
        self._pointer = buffer.pointer
        self.pointer = buffer.pointer
        self.status = 0
        self._callback = _MAP_CALLBACK(self._arrived)
        self._info = _MapCallbackInfo(None, _ALLOW_PROCESS_EVENTS, self._callback, None, None)

    def request(self, size: int) -> None:
        """Ask for the first `size` bytes, a multiple of 8."""
        self.status = 0
        self._recorder._map(self._pointer, _MAP_READ, 0, size, self._info)

    @property
    def answered(self) -> bool:
        """Whether the device has answered the request, well or badly."""
        return self.status != 0

    @property
    def ready(self) -> bool:
        """Whether take() would succeed."""
        return self.status == _SUCCESS

    def take(self, size: int) -> bytes:
        """The bytes; the buffer is free for the next step afterwards."""
        address = self._recorder._mapped_range(self._pointer, 0, size)
        data = ctypes.string_at(address, size)
        self._recorder._unmap(self._pointer)
        self.status = 0
        return data

    def _arrived(self, status: int, message: _StringView, _one: int | None, _two: int | None) -> None:
        self.status = status


def _function(native: ctypes.PyDLL, name: str, result: object, *arguments: object) -> Callable[..., Any]:
    """A native function with its types; ctypes' function objects have none that a checker could know."""
    function: Callable[..., Any] = getattr(native, name)
    function.restype = result  # type: ignore[attr-defined]  # ctypes sets these by attribute
    if arguments:
        function.argtypes = arguments  # type: ignore[attr-defined]
    return function
