"""Runs kernels now, through wgpu's public face: for probes, loading and tests. The decode loop uses the recorder.

Knows nothing of models. The engine's background thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from shaders.device import Gpu
from shaders.errors import BindingError
from shaders.kernel import Bound

Grid = tuple[int, int, int]
MAX_WORKGROUPS = 65535


def check_grid(name: str, grid: Grid) -> None:
    """Raise BindingError for a grid that a submit would abort on."""
    if any(n < 1 or n > MAX_WORKGROUPS for n in grid):
        raise BindingError(f"{name}: a grid of {grid} is outside 1 to {MAX_WORKGROUPS}")


def submit(gpu: Gpu, work: Sequence[tuple[Bound, Grid]]) -> None:
    """Submit kernels in order, without waiting."""
    for bound, grid in work:
        check_grid(bound.kernel.name, grid)
    encoder = gpu.device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    for bound, grid in work:
        compute.set_pipeline(bound.kernel.pipeline)
        compute.set_bind_group(0, bound.group, bound.offsets)
        compute.dispatch_workgroups(*grid)
    compute.end()
    gpu.device.queue.submit([encoder.finish()])


def run_once(gpu: Gpu, bound: Bound, grid: Grid) -> None:
    """Submit one kernel and wait for it."""
    submit(gpu, [(bound, grid)])
    gpu.wait()
