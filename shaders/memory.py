"""How much memory a device may be given: asked of the driver where it says, else estimated; the source is named.

Vulkan is asked through shaders/vulkan_budget.py, whatever backend runs: it speaks of the same memory. Direct3D's and
Metal's own answers are not asked for; there the computer's memory is what counts for adapters that share it. Any
thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from shaders.adapters import AdapterInfo
from shaders.vulkan_budget import HeapBudget, ask

_HEAP_SHARE = 0.7
_UNKNOWN_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes, and in words where the number comes from."""

    bytes: int
    source: str


def memory_budget(adapter: AdapterInfo) -> MemoryBudget:
    """What may be allocated on an adapter now, without pushing out what others hold there."""
    total = psutil.virtual_memory().total
    if adapter.software:
        return MemoryBudget(total // 2, "half of the computer's memory, which it shares")
    heap = _heap_of(adapter, ask())
    if heap is not None and heap.budget_bytes:
        return MemoryBudget(heap.budget_bytes, "the driver (VK_EXT_memory_budget)")
    if heap is not None and heap.heap_bytes:
        return MemoryBudget(int(_HEAP_SHARE * heap.heap_bytes), "70 % of the adapter's memory; the driver does not say")
    if adapter.kind == "IntegratedGPU" or adapter.backend == "Metal":
        return MemoryBudget(total // 2, "half of the computer's memory, which it shares")
    return MemoryBudget(_UNKNOWN_BYTES, "a guess: nothing on this computer tells")


def _heap_of(adapter: AdapterInfo, heaps: list[HeapBudget]) -> HeapBudget | None:
    for heap in heaps:
        if heap.name == adapter.name:
            return heap
    return None
