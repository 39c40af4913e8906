"""The sampler's host side: its sizes and the binding of its two kernels.

Owns the layout of the `vocab` uniform and what the sampler asks of its buffers. Knows nothing of requests: how each
sample is drawn stands in the step's table. The engine's background thread.
"""

from __future__ import annotations

import numpy as np

from shaders.device import Buffer, Gpu
from shaders.errors import BindingError
from shaders.kernel import Bound, Kernel, KernelCache

GPU_THREADS = 256  # every WebGPU device allows as many
# A software adapter takes the threads of a workgroup in turn, eight at a time, and each barrier once for each eight.
SOFTWARE_THREADS = 16


def vocab_shape(gpu: Gpu, vocab_size: int, logits_stride: int) -> Buffer:
    """The uniform that tells the sampler its sizes; logits_stride counts f32 from one row of logits to the next.

    Raises BindingError where rows overlap or do not start at a multiple of four elements.
    """
    if vocab_size < 1 or logits_stride < vocab_size or logits_stride % 4:
        raise BindingError(
            f"sample: rows of {vocab_size} logits need a stride that is at least as long and a multiple of 4, "
            f"not {logits_stride}"
        )
    return gpu.uniform("vocab", np.array([vocab_size, logits_stride // 4], np.uint32))


def bind_sampler(
    kernels: KernelCache,
    *,
    step: Buffer,
    vocab_shape: Buffer,
    logits: Buffer,
    last_tokens: Buffer,
    tokens: Buffer,
    threads: int | None = None,
) -> Bound:
    """`sample` with its buffers; its grid is (samples of the step, 1, 1).

    logits [rows, logits_stride] f32; last_tokens [slots] u32 and tokens [samples] u32 are written. Both must hold
    every slot and sample that a step's table may name. threads per workgroup, a power of two: None for what suits the
    adapter. Draws agree between numbers of threads but for rounding. Raises BindingError.
    """
    return _kernel(kernels, "sample", threads).bind(
        {"step": step, "vocab": vocab_shape, "logits": logits, "last_tokens": last_tokens, "tokens": tokens}
    )


def bind_support(
    kernels: KernelCache,
    *,
    step: Buffer,
    vocab_shape: Buffer,
    logits: Buffer,
    bitmask: Buffer,
    threads: int | None = None,
) -> Bound:
    """`sample_support` with its buffers: which tokens each sample may be drawn from.

    bitmask [samples, ceil(vocab_size / 32)] u32 is written, 1 = may be drawn. Grid as for the sampler. Raises
    BindingError.
    """
    return _kernel(kernels, "sample_support", threads).bind(
        {"step": step, "vocab": vocab_shape, "logits": logits, "bitmask": bitmask}
    )


def threads_of(kernels: KernelCache, threads: int | None) -> int:
    """Threads of a workgroup that walks one row of logits: as given, or what suits the adapter."""
    if threads is not None:
        return threads
    return SOFTWARE_THREADS if kernels.gpu.adapter.software else GPU_THREADS


def _kernel(kernels: KernelCache, name: str, threads: int | None) -> Kernel:
    return kernels.get(name, overrides={"WG": threads_of(kernels, threads)})
