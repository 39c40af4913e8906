"""Records and submits a step's work with the GIL held, so that a busy Python thread beside it cannot slow it down.

cffi gives the GIL away on every call; with 150 dispatches a step, each call would then wait for whoever took it. So
recording goes through ctypes.PyDLL on the library that wgpu has loaded. Only the wait for the device gives the GIL
away. Raw calls skip wgpu's error checks: everything recorded here was checked when it was bound (shaders/kernel.py)
and when its grid was made (shaders/run.py). The engine's background thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from shaders.device import Buffer, Gpu, _address

Command = tuple[int, int, int, int, int]
"""(pipeline or 0 for the last one, bind group, x, y, z)"""


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
    """Bytes to copy between buffers at the end of a step."""

    source: int
    target: int
    size: int


class Recorder:
    """The raw calls of one device. Steps are recorded one at a time: begin(), run(), ..., submit()."""

    def __init__(self, gpu: Gpu) -> None:
        from wgpu.backends.wgpu_native import ffi, lib
        from wgpu.backends.wgpu_native._ffi import lib_path

        self._cffi = lib
        self._device = _address(gpu.device._internal)
        self._device_handle = gpu.device._internal
        self._queue = _address(gpu.device.queue._internal)
        native = ctypes.PyDLL(lib_path)
        self._create_encoder = _function(native, "wgpuDeviceCreateCommandEncoder", c_void_p, c_void_p, c_void_p)
        self._begin_pass = _function(native, "wgpuCommandEncoderBeginComputePass", c_void_p, c_void_p, c_void_p)
        self._set_pipeline = _function(native, "wgpuComputePassEncoderSetPipeline", None, c_void_p, c_void_p)
        self._set_group = _function(
            native, "wgpuComputePassEncoderSetBindGroup", None, c_void_p, c_uint32, c_void_p, c_size_t, c_void_p
        )
        self._dispatch = _function(
            native, "wgpuComputePassEncoderDispatchWorkgroups", None, c_void_p, c_uint32, c_uint32, c_uint32
        )
        self._end_pass = _function(native, "wgpuComputePassEncoderEnd", None, c_void_p)
        self._release_pass = _function(native, "wgpuComputePassEncoderRelease", None, c_void_p)
        self._copy = _function(
            native, "wgpuCommandEncoderCopyBufferToBuffer", None, c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_uint64
        )
        self._finish = _function(native, "wgpuCommandEncoderFinish", c_void_p, c_void_p, c_void_p)
        self._release_encoder = _function(native, "wgpuCommandEncoderRelease", None, c_void_p)
        self._release_commands = _function(native, "wgpuCommandBufferRelease", None, c_void_p)
        self._submit = _function(native, "wgpuQueueSubmitForIndex", c_uint64, c_void_p, c_size_t, c_void_p)
        self._write = _function(native, "wgpuQueueWriteBuffer", None, c_void_p, c_void_p, c_uint64, c_void_p, c_size_t)
        self._map = _function(
            native, "wgpuBufferMapAsync", _Future, c_void_p, c_uint64, c_size_t, c_size_t, _MapCallbackInfo
        )
        self._mapped_range = _function(native, "wgpuBufferGetConstMappedRange", c_void_p, c_void_p, c_size_t, c_size_t)
        self._unmap = _function(native, "wgpuBufferUnmap", None, c_void_p)
        self._index = ffi.new("WGPUSubmissionIndex *")
        self._null = ffi.NULL
        self._encoder = 0
        self._pass = 0

    def begin(self) -> None:
        """Start a step."""
        self._encoder = self._create_encoder(self._device, None)
        self._pass = self._begin_pass(self._encoder, None)

    def run(self, commands: Sequence[Command]) -> None:
        """Record dispatches in order."""
        compute = self._pass
        set_pipeline, set_group, dispatch = self._set_pipeline, self._set_group, self._dispatch
        for pipeline, group, x, y, z in commands:
            if pipeline:
                set_pipeline(compute, pipeline)
            set_group(compute, 0, group, 0, None)
            dispatch(compute, x, y, z)

    def submit(self, copies: Sequence[Copy]) -> int:
        """Submit the step, copies last, and return the device's number of the submission."""
        self._end_pass(self._pass)
        self._release_pass(self._pass)
        for copy in copies:
            self._copy(self._encoder, copy.source, 0, copy.target, 0, copy.size)
        commands = c_void_p(self._finish(self._encoder, None))
        self._release_encoder(self._encoder)
        index: int = self._submit(self._queue, 1, ctypes.byref(commands))
        self._release_commands(commands)
        self._encoder = self._pass = 0
        return index

    def discard(self) -> None:
        """Give up a step that was begun and not submitted."""
        if self._encoder:
            self._end_pass(self._pass)
            self._release_pass(self._pass)
            self._release_encoder(self._encoder)
            self._encoder = self._pass = 0

    def write(self, buffer: int, offset: int, address: int, size: int) -> None:
        """Queue host bytes to be written ahead of the next submit; they are copied before this returns."""
        self._write(self._queue, buffer, offset, address, size)

    def poll(self) -> None:
        """Let finished work call back, without waiting."""
        self._cffi.wgpuDevicePoll(self._device_handle, 0, self._null)

    def wait(self, index: int) -> None:
        """Wait for a submission. The GIL is free meanwhile."""
        self._index[0] = index
        self._cffi.wgpuDevicePoll(self._device_handle, 1, self._index)


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
    function.argtypes = arguments  # type: ignore[attr-defined]
    return function
