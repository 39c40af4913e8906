"""The host side of what stands around the draw: processed logits, counted tokens, logprobs.

Owns what these kernels ask of their buffers. What each sample asks for stands in the step's two tables. Knows nothing
of requests. The engine's background thread.
"""

from __future__ import annotations

from shaders.device import Buffer
from shaders.kernel import Bound, KernelCache
from shaders.logit_table import MAX_TOP
from shaders.ops.sampling import threads_of

RECORD_BYTES = 8 * (1 + MAX_TOP)
"""Of one sample's logprobs: (token u32, logprob f32) of its own token, then of the likeliest."""


def bind_process(
    kernels: KernelCache,
    *,
    step: Buffer,
    vocab_shape: Buffer,
    logit_table: Buffer,
    counts: Buffer,
    logits: Buffer,
    processed: Buffer,
    threads: int | None = None,
) -> Bound:
    """`logit_process` with its buffers; its grid is (samples of the step, 1, 1).

    logits and processed [rows, logits_stride] f32; the samples of a step name different rows. counts [slots,
    logits_stride] u32. threads per workgroup, a power of two: None for what suits the adapter. Raises BindingError.
    """
    return kernels.get("logit_process", overrides={"WG": threads_of(kernels, threads)}).bind(
        {
            "step": step,
            "vocab": vocab_shape,
            "logit_table": logit_table,
            "counts": counts,
            "logits": logits,
            "processed": processed,
        }
    )


def bind_count(
    kernels: KernelCache, *, step: Buffer, vocab_shape: Buffer, logit_table: Buffer, tokens: Buffer, counts: Buffer
) -> Bound:
    """`count_drawn` with its buffers, run after the sampler; its grid is (1, 1, 1). Raises BindingError."""
    return kernels.get("count_drawn").bind(
        {"step": step, "vocab": vocab_shape, "logit_table": logit_table, "tokens": tokens, "counts": counts}
    )


def bind_logprobs(
    kernels: KernelCache,
    *,
    step: Buffer,
    vocab_shape: Buffer,
    logit_table: Buffer,
    logits: Buffer,
    tokens: Buffer,
    logprobs: Buffer,
    threads: int | None = None,
) -> Bound:
    """`logprobs` with its buffers, run after the sampler; its grid is (samples of the step, 1, 1).

    logprobs [samples] records of RECORD_BYTES are written where samples ask for them. threads as in bind_process.
    Raises BindingError.
    """
    return kernels.get("logprobs", overrides={"WG": threads_of(kernels, threads)}).bind(
        {
            "step": step,
            "vocab": vocab_shape,
            "logit_table": logit_table,
            "logits": logits,
            "tokens": tokens,
            "logprobs": logprobs,
        }
    )
