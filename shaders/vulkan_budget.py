"""Asks Vulkan how much memory each adapter has free, in a process of its own: drivers that crash here crash alone.

Run as `python -m shaders.vulkan_budget`, it prints one JSON list of {name, heap_bytes, budget_bytes or null}; ask()
runs it. Source: the Vulkan specification, VK_EXT_memory_budget and vkGetPhysicalDeviceMemoryProperties2. Knows nothing
of wgpu. Any thread may call ask(); it takes a tenth of a second.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from ctypes import POINTER, byref, c_char, c_char_p, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

_TIMEOUT_S = 10.0
_API_1_1 = (1 << 22) | (1 << 12)
_TYPE_APPLICATION, _TYPE_INSTANCE, _TYPE_MEMORY_PROPERTIES_2, _TYPE_BUDGET = 0, 1, 1000059006, 1000237000
_EXTENSION = b"VK_EXT_memory_budget"
_DEVICE_LOCAL = 1


@dataclass(frozen=True, slots=True)
class HeapBudget:
    """The device-local memory of one adapter; budget_bytes is None where the driver does not say."""

    name: str
    heap_bytes: int
    budget_bytes: int | None


def ask() -> list[HeapBudget]:
    """What the child process found; empty without a Vulkan loader, or where it failed."""
    if getattr(sys, "frozen", False):
        return []  # the bundled app's executable is not a Python that could run this
    try:
        done = subprocess.run(
            [sys.executable, "-m", "shaders.vulkan_budget"], capture_output=True, timeout=_TIMEOUT_S, check=True
        )
        return [HeapBudget(d["name"], d["heap_bytes"], d["budget_bytes"]) for d in json.loads(done.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return []


class _Application(ctypes.Structure):
    _fields_ = (
        ("type", c_int32),
        ("next", c_void_p),
        ("name", c_char_p),
        ("version", c_uint32),
        ("engine", c_char_p),
        ("engine_version", c_uint32),
        ("api", c_uint32),
    )


class _Instance(ctypes.Structure):
    _fields_ = (
        ("type", c_int32),
        ("next", c_void_p),
        ("flags", c_uint32),
        ("application", POINTER(_Application)),
        ("num_layers", c_uint32),
        ("layers", c_void_p),
        ("num_extensions", c_uint32),
        ("extensions", c_void_p),
    )


class _MemoryType(ctypes.Structure):
    _fields_ = (("flags", c_uint32), ("heap", c_uint32))


class _Heap(ctypes.Structure):
    _fields_ = (("size", c_uint64), ("flags", c_uint32))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("num_types", c_uint32),
        ("types", _MemoryType * 32),
        ("num_heaps", c_uint32),
        ("heaps", _Heap * 16),
    )


class _Memory2(ctypes.Structure):
    _fields_ = (("type", c_int32), ("next", c_void_p), ("memory", _Memory))


class _Budget(ctypes.Structure):
    _fields_ = (("type", c_int32), ("next", c_void_p), ("budget", c_uint64 * 16), ("usage", c_uint64 * 16))


class _Extension(ctypes.Structure):
    _fields_ = (("name", c_char * 256), ("version", c_uint32))


class _DeviceHead(ctypes.Structure):
    """The start of VkPhysicalDeviceProperties; the rest is room."""

    _fields_ = (
        ("api", c_uint32),
        ("driver", c_uint32),
        ("vendor", c_uint32),
        ("device", c_uint32),
        ("type", c_int32),
        ("name", c_char * 256),
        ("rest", c_uint8 * 2048),
    )


def _loader() -> ctypes.CDLL:
    if sys.platform == "win32":
        return ctypes.WinDLL("vulkan-1.dll")
    names = ("libvulkan.dylib", "libvulkan.1.dylib") if sys.platform == "darwin" else ("libvulkan.so.1",)
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("no Vulkan loader")


def query() -> list[dict[str, object]]:
    """Ask in this process. Raises OSError without a loader or a usable instance."""
    vk = _loader()
    application = _Application(_TYPE_APPLICATION, None, b"inglenook", 0, None, 0, _API_1_1)
    wanted = _Instance(_TYPE_INSTANCE, None, 0, ctypes.pointer(application), 0, None, 0, None)
    instance = c_void_p()
    if vk.vkCreateInstance(byref(wanted), None, byref(instance)):
        raise OSError("no Vulkan instance")
    count = c_uint32()
    vk.vkEnumeratePhysicalDevices(instance, byref(count), None)
    devices = (c_void_p * count.value)()
    vk.vkEnumeratePhysicalDevices(instance, byref(count), devices)
    found = [_describe(vk, c_void_p(device)) for device in devices]
    vk.vkDestroyInstance(instance, None)
    return found


def _describe(vk: ctypes.CDLL, device: c_void_p) -> dict[str, object]:
    head = _DeviceHead()
    vk.vkGetPhysicalDeviceProperties(device, byref(head))
    budget = _Budget(_TYPE_BUDGET, None)
    says = _has_budget(vk, device)
    memory = _Memory2(_TYPE_MEMORY_PROPERTIES_2, ctypes.cast(byref(budget), c_void_p) if says else None)
    vk.vkGetPhysicalDeviceMemoryProperties2(device, byref(memory))
    heaps = [
        (memory.memory.heaps[i].size, max(0, budget.budget[i] - budget.usage[i]))
        for i in range(memory.memory.num_heaps)
        if memory.memory.heaps[i].flags & _DEVICE_LOCAL
    ]
    size, free = max(heaps, default=(0, 0))
    return {"name": head.name.decode(errors="replace"), "heap_bytes": size, "budget_bytes": free if says else None}


def _has_budget(vk: ctypes.CDLL, device: c_void_p) -> bool:
    count = c_uint32()
    vk.vkEnumerateDeviceExtensionProperties(device, None, byref(count), None)
    extensions = (_Extension * count.value)()
    vk.vkEnumerateDeviceExtensionProperties(device, None, byref(count), extensions)
    return any(extension.name == _EXTENSION for extension in extensions)


if __name__ == "__main__":
    print(json.dumps(query()))
