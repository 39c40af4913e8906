"""What a device can really do, found by running a kernel on it: the choice between kernel sets rests on this.

Knows nothing of models. The engine's background thread, once per device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shaders.device import Gpu
from shaders.kernel import Kernel
from shaders.run import run_once
from shaders.source import load_source

KernelSet = Literal["fused", "plain"]

_FUSED_STORAGE_BUFFERS = 11


@dataclass(frozen=True, slots=True)
class Traits:
    """subgroup_size is 0 where subgroups cannot be used; `reason` says why the set was chosen.

    clusters: how many clusters of 8 lanes split K in a fused mat-mul. One on a software adapter, where lanes are a
    vector register and more workgroups are what fills the cores; four elsewhere, to fill a GPU's subgroups.
    """

    subgroup_size: int
    kernel_set: KernelSet
    clusters: int
    reason: str


def probe(gpu: Gpu) -> Traits:
    """Run the probe kernel and choose. Fused kernels need subgroups of a multiple of 8 lanes and enough bindings."""
    clusters = 1 if gpu.adapter.software else 4
    if "subgroup" not in gpu.features:
        return Traits(0, "plain", clusters, "the device has no subgroup operations")
    size, sound = _measure_subgroups(gpu)
    if size < 8 or size % 8:
        return Traits(size, "plain", clusters, f"subgroups have {size} lanes; the fused kernels need a multiple of 8")
    if not sound:
        return Traits(size, "plain", clusters, "subgroup shuffles give wrong results on this device")
    available = gpu.limits["max-storage-buffers-per-shader-stage"]
    if available < _FUSED_STORAGE_BUFFERS:
        return Traits(
            size, "plain", clusters, f"only {available} buffers can be bound; {_FUSED_STORAGE_BUFFERS} are needed"
        )
    return Traits(size, "fused", max(clusters, size // 8) if clusters > 1 else 1, f"subgroups have {size} lanes")


def _measure_subgroups(gpu: Gpu) -> tuple[int, bool]:
    """Width of a subgroup, and whether every lane heard the lane it should have."""
    found = gpu.storage("probe", 64 * 8)
    try:
        run_once(gpu, Kernel(gpu, load_source("probe"), {}).bind({"found": found}), (1, 1, 1))
        lanes = gpu.read(found).view(np.uint32).reshape(64, 2)
    finally:
        gpu.release([found])
    size = int(lanes[0, 0])
    if size == 0 or (lanes[:, 0] != size).any():
        return size, False
    lane = np.arange(64) % size
    neighbour = lane ^ 1
    expected = (neighbour & ~7) + 7 - (neighbour & 7)
    return size, bool((lanes[:, 1] == expected).all())
