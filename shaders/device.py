"""One opened GPU: its device, queue, limits and traits, and the buffers allocated on it.

Owns allocation and its accounting. Knows nothing of kernels' contents or models. The engine's background thread
uses it; nothing here may run on two threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shaders.adapters import AdapterInfo, pick_adapter
from shaders.errors import BindingError, DeviceLost, NoUsableAdapter, OutOfDeviceMemory
from shaders.loss import losses

if TYPE_CHECKING:
    import wgpu

_WANTED_FEATURES = ("subgroup", "timestamp-query", "shader-int64")
_WANTED_LIMITS = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-dynamic-storage-buffers-per-pipeline-layout",
)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes on the device: `size` of them, rounded up to 16, from `offset` on in a buffer of wgpu's.

    `serial` numbers wgpu's buffers over the device's life; addresses come back once a buffer is released.
    """

    name: str
    size: int
    handle: wgpu.GPUBuffer
    serial: int
    offset: int = 0

    @property
    def pointer(self) -> int:
        """The native handle, for the recorder."""
        return _address(self.handle._internal)


class Gpu:
    """An opened device. Construct with open_gpu(); close() destroys it and everything on it."""

    def __init__(self, adapter: AdapterInfo, device: wgpu.GPUDevice) -> None:
        self.adapter = adapter
        self.device = device
        self.limits: dict[str, int] = dict(device.limits)
        self.features = frozenset(device.features)
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self._closed = False
        # Held by whoever submits without the GIL: a device that goes meanwhile would take the process along.
        self.submitting = threading.Lock()
        self._serial = 0
        self._losses_seen = losses()
        # Nobody is told when a device is destroyed, and raw calls on it abort: so its destroy() tells us first.
        self._destroy = device.destroy
        device.destroy = self._destroyed
        # Recorded work names buffers by address, so none may be collected while the device lives.
        self._buffers: dict[int, Buffer] = {}

    @property
    def lost(self) -> bool:
        """Whether the device is gone: closed, destroyed, or given up by its driver. Cheap enough to ask every step."""
        if not self._closed and losses() != self._losses_seen:
            self._losses_seen = losses()
            try:
                self.device.create_buffer(size=16, usage="COPY_DST").destroy()
            except Exception:  # noqa: BLE001 - whatever wgpu raises for a lost device
                self._closed = True
        return self._closed

    def require(self) -> None:
        """Raise DeviceLost if the device is gone."""
        if self.lost:
            raise DeviceLost("The graphics device was lost. Its driver may have restarted.")

    @property
    def max_binding_bytes(self) -> int:
        """The largest range that one binding may cover."""
        return min(self.limits["max-storage-buffer-binding-size"], self.limits["max-buffer-size"])

    def storage(self, name: str, size: int) -> Buffer:
        """A zeroed buffer for kernels, copies and writes. Raises OutOfDeviceMemory, or BindingError beyond limits."""
        return self._create(name, size, "STORAGE|COPY_SRC|COPY_DST")

    def uniform_storage(self, name: str, size: int) -> Buffer:
        """A zeroed buffer for constant blocks."""
        return self._create(name, size, "UNIFORM|STORAGE|COPY_DST")

    def uniform(self, name: str, data: npt.NDArray[np.generic]) -> Buffer:
        """A constant block of a few words."""
        buffer = self.uniform_storage(name, data.nbytes)
        self.write(buffer, 0, data)
        return buffer

    def readback(self, name: str, size: int) -> Buffer:
        """A buffer that the host can map for reading."""
        return self._create(name, size, "MAP_READ|COPY_DST")

    def upload(self, name: str, data: npt.NDArray[np.generic]) -> Buffer:
        """A storage buffer that starts with `data`."""
        buffer = self.storage(name, data.nbytes)
        self.write(buffer, 0, data)
        return buffer

    def write(self, buffer: Buffer, offset: int, data: npt.NDArray[np.generic]) -> None:
        """Queue bytes to be written before the next submit. Offset and length are multiples of 4."""
        if offset % 4 or data.nbytes % 4 or offset + data.nbytes > buffer.size:
            raise BindingError(f"{buffer.name}: cannot write {data.nbytes} bytes at {offset} of {buffer.size}")
        if data.nbytes:
            self.device.queue.write_buffer(buffer.handle, buffer.offset + offset, np.ascontiguousarray(data))

    def clear(self, buffer: Buffer) -> None:
        """Zero a whole buffer, ahead of what is submitted later."""
        encoder = self.device.create_command_encoder()
        encoder.clear_buffer(buffer.handle, buffer.offset, buffer.size)
        self.device.queue.submit([encoder.finish()])

    def read(self, buffer: Buffer, offset: int = 0, size: int | None = None) -> npt.NDArray[np.uint8]:
        """Wait for all submitted work and copy bytes to the host. For tests and loading, not for the decode loop."""
        self.require()
        size = buffer.size - offset if size is None else size
        return np.frombuffer(self.device.queue.read_buffer(buffer.handle, buffer.offset + offset, size), np.uint8)

    def release(self, buffers: Iterable[Buffer]) -> None:
        """Give whole buffers back, not parts of an arena. Nothing submitted later may use them."""
        for buffer in buffers:
            del self._buffers[buffer.pointer]
            self.allocated_bytes -= buffer.size
            buffer.handle.destroy()

    def wait(self) -> None:
        """Block until everything submitted is done. Raises DeviceLost."""
        self.require()
        self.device._poll_wait()

    def close(self) -> None:
        """Wait for what is submitted, then destroy the device. Idempotent, and safe on a lost device."""
        if not self.lost:
            self.wait()
            self.device.destroy()
        self._buffers.clear()
        self.allocated_bytes = 0

    def _destroyed(self) -> None:
        with self.submitting:
            self._closed = True
            self._destroy()

    def _create(self, name: str, size: int, usage: str) -> Buffer:
        size = max(16, -(-size // 16) * 16)
        if size > self.limits["max-buffer-size"]:
            raise BindingError(f"{name}: {size} bytes are more than the {self.limits['max-buffer-size']} of one buffer")
        try:
            handle = self.device.create_buffer(label=name, size=size, usage=usage)
        except Exception as error:  # wgpu has no common root for its allocation errors
            self.require()
            raise OutOfDeviceMemory(f"The graphics device refused {size / 1e6:.0f} MB for {name}: {error}") from error
        self.allocated_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        self._serial += 1
        buffer = Buffer(name, size, handle, self._serial)
        self._buffers[buffer.pointer] = buffer
        return buffer


def open_gpu(name: str | None = None) -> Gpu:
    """Open the best adapter, or the one whose name contains `name`. Raises NoUsableAdapter."""
    adapter = pick_adapter(name)
    features = [f for f in _WANTED_FEATURES if f in adapter.handle.features]
    limits = {key: adapter.handle.limits[key] for key in _WANTED_LIMITS if key in adapter.handle.limits}
    try:
        device = adapter.handle.request_device_sync(required_features=features, required_limits=limits)
    except Exception as error:  # drivers fail here in ways that wgpu reports as plain RuntimeError
        raise NoUsableAdapter(f"{adapter.name} cannot be opened: {error}. Update the graphics driver.") from error
    return Gpu(adapter, device)


def _address(handle: object) -> int:
    from wgpu.backends.wgpu_native import ffi

    return int(ffi.cast("uintptr_t", handle))
