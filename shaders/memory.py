"""How much memory a device may be given. wgpu does not say, so this is an estimate that names its source.

Asking the drivers (Vulkan's memory budget, DXGI, Metal) is the better answer and is not built yet: a shared-memory
adapter counts half of the computer's memory, any other is taken at one buffer's limit. The engine's background
thread, or any thread with a device of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from shaders.device import Gpu


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes, and in words where the number comes from."""

    bytes: int
    source: str


def memory_budget(gpu: Gpu) -> MemoryBudget:
    """The budget of an opened device."""
    if gpu.adapter.kind in ("CPU", "IntegratedGPU"):
        return MemoryBudget(psutil.virtual_memory().total // 2, "half of the computer's memory, which it shares")
    return MemoryBudget(gpu.limits["max-buffer-size"], "the largest single buffer; the driver was not asked")
