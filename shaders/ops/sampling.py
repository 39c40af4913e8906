"""The sampler's host side: its sizes and the binding of its two kernels.

Owns the layout of the `vocab` uniform and what the sampler asks of its buffers. Knows nothing of requests: how each
sample is drawn stands in the step's table. The engine's background thread.
"""

from __future__ import annotations

import numpy as np

from shaders.device import Buffer, Gpu
from shaders.errors import BindingError
from shaders.kernel import Bound, KernelCache


def vocab_shape(gpu: Gpu, vocab_size: int, logits_stride: int) -> Buffer:
    """The uniform that tells the sampler its sizes; logits_stride counts f32 from one row of logits to the next.

    Raises BindingError where rows overlap or do not start at a multiple of four elements.
    """
    if vocab_size < 1 or logits_stride < vocab_size or logits_stride % 4:
        raise BindingError(
            f"sample: rows of {vocab_size} logits need a stride of at least that and a multiple of 4, not {logits_stride}"
        )
    return gpu.uniform("vocab", np.array([vocab_size, logits_stride // 4], np.uint32))


def bind_sampler(
    kernels: KernelCache, *, step: Buffer, vocab_shape: Buffer, logits: Buffer, last_tokens: Buffer, tokens: Buffer
) -> Bound:
    """`sample` with its buffers; its grid is (samples of the step, 1, 1).

    logits [rows, logits_stride] f32; last_tokens [slots] u32 and tokens [samples] u32 are written. Both must hold
    every slot and sample that a step's table may name. Raises BindingError.
    """
    return kernels.get("sample").bind(
        {"step": step, "vocab": vocab_shape, "logits": logits, "last_tokens": last_tokens, "tokens": tokens}
    )


def bind_support(kernels: KernelCache, *, step: Buffer, vocab_shape: Buffer, logits: Buffer, bitmask: Buffer) -> Bound:
    """`sample_support` with its buffers: which tokens each sample may be drawn from.

    bitmask [samples, ceil(vocab_size / 32)] u32 is written, 1 = may be drawn. Grid as for the sampler. Raises
    BindingError.
    """
    return kernels.get("sample_support").bind(
        {"step": step, "vocab": vocab_shape, "logits": logits, "bitmask": bitmask}
    )
