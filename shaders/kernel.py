"""Compiled kernels and their bind groups: everything that can be wrong is found here, before a submit could abort.

A Kernel is one pipeline of one variant (slots and overrides); the KernelCache makes each once. Knows nothing of
models. The engine's background thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shaders.device import Buffer, Gpu, _address
from shaders.errors import BindingError, SourceError
from shaders.source import ShaderSource, load_source

if TYPE_CHECKING:
    import wgpu

# What differs from layer to layer. Its place in an arena is given at each dispatch, so that the layers share a bind
# group: wgpu's work on 150 bind groups a step costs more than that on ten. WebGPU promises four such bindings.
_DYNAMIC = ("weights", "scales", "gain", "k_pages", "v_pages")
_MAX_DYNAMIC = 4
_TYPES = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
Overrides = Mapping[str, int | float | bool]


@dataclass(frozen=True, slots=True)
class Bound:
    """A kernel with its buffers: all that a dispatch needs besides its grid. Handles are native addresses.

    `offsets`: bytes at which the dynamic bindings start, in the order of the bindings.
    """

    kernel: Kernel
    group: wgpu.GPUBindGroup
    pipeline_pointer: int
    group_pointer: int
    offsets: tuple[int, ...]


class Kernel:
    """One pipeline. bind() checks names, usage and sizes, and raises BindingError."""

    def __init__(self, gpu: Gpu, source: ShaderSource, overrides: Overrides) -> None:
        self.gpu = gpu
        self.source = source
        self.name = source.name
        unknown = set(overrides) - source.overrides
        if unknown:
            raise SourceError(f"{source.name}:1: has no override called {sorted(unknown)[0]}")
        storage = sum(b.access != "uniform" for b in source.bindings)
        if storage > gpu.limits["max-storage-buffers-per-shader-stage"]:
            raise BindingError(f"{source.name}: binds {storage} buffers, more than this device allows")
        device = gpu.device
        names = [b.name for b in source.bindings if b.access != "uniform" and b.name in _DYNAMIC]
        allowed = gpu.limits["max-dynamic-storage-buffers-per-pipeline-layout"]
        self._dynamic = frozenset(names[:_MAX_DYNAMIC]) if allowed >= _MAX_DYNAMIC else frozenset()
        self._groups: dict[tuple[tuple[int, int, int], ...], wgpu.GPUBindGroup] = {}
        module = _compile(gpu, source)
        self._layout = device.create_bind_group_layout(
            label=source.name,
            entries=[
                {
                    "binding": i,
                    "visibility": "COMPUTE",
                    "buffer": {"type": _TYPES[b.access], "has_dynamic_offset": b.name in self._dynamic},
                }
                for i, b in enumerate(source.bindings)
            ],
        )
        self.pipeline: wgpu.GPUComputePipeline = device.create_compute_pipeline(
            label=source.name,
            layout=device.create_pipeline_layout(bind_group_layouts=[self._layout]),
            compute={
                "module": module,
                "entry_point": "main",
                "constants": {k: float(v) for k, v in overrides.items()},
            },
        )

    def bind(self, buffers: Mapping[str, Buffer]) -> Bound:
        """A bind group of the named buffers, which must be exactly those of the kernel."""
        names = [b.name for b in self.source.bindings]
        if set(buffers) != set(names):
            raise BindingError(f"{self.name}: binds {names}, given are {sorted(buffers)}")
        written = {buffers[b.name].pointer for b in self.source.bindings if b.access == "read_write"}
        ranges: list[tuple[int, int, int]] = []  # serial of the buffer, fixed offset, size
        offsets: list[int] = []
        for binding in self.source.bindings:
            buffer = buffers[binding.name]
            if binding.access != "uniform" and buffer.size > self.gpu.max_binding_bytes:
                raise BindingError(f"{self.name}: {buffer.name} is larger than one binding of this device")
            if binding.access == "read" and buffer.pointer in written:
                raise BindingError(f"{self.name}: {buffer.name} is both read and written")
            dynamic = binding.name in self._dynamic
            if dynamic:
                offsets.append(buffer.offset)
            ranges.append((buffer.serial, 0 if dynamic else buffer.offset, buffer.size))
        key = tuple(ranges)
        if key not in self._groups:
            self._groups[key] = self._make_group(buffers, ranges)
        group = self._groups[key]
        return Bound(self, group, _address(self.pipeline._internal), _address(group._internal), tuple(offsets))

    def _make_group(self, buffers: Mapping[str, Buffer], ranges: list[tuple[int, int, int]]) -> wgpu.GPUBindGroup:
        entries: list[dict[str, Any]] = [
            {
                "binding": index,
                "resource": {"buffer": buffers[binding.name].handle, "offset": offset, "size": size},
            }
            for index, (binding, (_, offset, size)) in enumerate(zip(self.source.bindings, ranges, strict=True))
        ]
        return self.gpu.device.create_bind_group(label=self.name, layout=self._layout, entries=entries)


def _compile(gpu: Gpu, source: ShaderSource) -> wgpu.GPUShaderModule:
    try:
        return gpu.device.create_shader_module(label=source.name, code=source.code)
    except Exception as error:  # wgpu raises its own GPUValidationError, which has no importable root
        where = re.search(r"wgsl:(\d+):", str(error))
        place = source.locate(int(where[1])) if where else f"{source.name}:1"
        raise SourceError(f"{place}: {error}") from error


class KernelCache:
    """Kernels of one device, each variant compiled once."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._kernels: dict[tuple[object, ...], Kernel] = {}

    def get(self, name: str, slots: Mapping[str, str] | None = None, overrides: Overrides | None = None) -> Kernel:
        """The kernel `wgsl/<name>.wgsl` with slots filled by files and overrides set. Raises SourceError."""
        key = (name, tuple(sorted((slots or {}).items())), tuple(sorted((overrides or {}).items())))
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = Kernel(self.gpu, load_source(name, slots), overrides or {})
        return kernel

    def all(self) -> list[Kernel]:
        """Every kernel made so far."""
        return list(self._kernels.values())
