"""What stands between logits and tokens: the sampler, and around it bias, penalties, bitmask and logprobs.

Owns the token counts, the processed copy of the logits and the records of logprobs; they are allocated, and their
kernels compiled, when first asked for, since most chats never do. Knows slots and rows, not requests; callers have
checked all indices. The engine's background thread.

    sample | process, sample   [count]   [logprobs]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from shaders.device import Buffer, Gpu
from shaders.dispatch import Dispatch
from shaders.kernel import KernelCache
from shaders.logit_table import LogitTable
from shaders.ops.logits import RECORD_BYTES, bind_count, bind_logprobs, bind_process
from shaders.ops.sampling import bind_sampler, vocab_shape
from shaders.recorder import Recorder

DrawPart = Literal["sample", "sample_processed", "count", "logprobs"]
_IN_PROMPT = np.uint32(1 << 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBuffers:
    """Buffers that a step reads or writes from outside the plan, and their sizes.

    step: the step's table. tokens u32 [max_samples], last_tokens u32 [max_slots], logits f32 [max_samples, stride].
    """

    step: Buffer
    tokens: Buffer
    last_tokens: Buffer
    logits: Buffer
    logits_stride: int
    vocab_size: int
    max_samples: int
    max_slots: int


class DrawStage:
    """Dispatches by part. Asking for other parts than "sample" may raise OutOfDeviceMemory or BindingError."""

    def __init__(self, gpu: Gpu, kernels: KernelCache, buffers: StepBuffers) -> None:
        self.table = LogitTable(buffers.max_samples, buffers.vocab_size)
        self._gpu = gpu
        self._kernels = kernels
        self._buffers = buffers
        self._vocab_shape = vocab_shape(gpu, buffers.vocab_size, buffers.logits_stride)
        self._sample = (self._sampler(buffers.logits), self._advance())

    def part(self, name: DrawPart) -> Sequence[Dispatch]:
        """The dispatches of a part, in order. Only "sample" also advances the step's table."""
        if name == "sample":
            return self._sample
        if name == "sample_processed":
            return self._sample_processed
        return self._count if name == "count" else self._logprobs

    def write_table(self, recorder: Recorder) -> None:
        """Upload what this step's samples ask for, ahead of the next submit."""
        recorder.write(self._device_table.pointer, 0, self.table.address, self.table.bytes_used)

    def set_counts(
        self, recorder: Recorder, slot: int, prompt_ids: Sequence[int], generated_ids: Sequence[int]
    ) -> None:
        """Write a slot's row of counts, ahead of the next submit."""
        stride = self._buffers.logits_stride
        row = np.bincount(np.array(generated_ids, np.int64), minlength=stride).astype(np.uint32)
        row[np.array(prompt_ids, np.int64)] |= _IN_PROMPT
        recorder.write(self._counts.pointer, 4 * stride * slot, row.ctypes.data, row.nbytes)

    @cached_property
    def records(self) -> Buffer:
        """Where logprobs are written, RECORD_BYTES per sample."""
        return self._gpu.storage("logprobs", RECORD_BYTES * self._buffers.max_samples)

    @cached_property
    def _device_table(self) -> Buffer:
        return self._gpu.storage("logit table", self.table.data.nbytes)

    @cached_property
    def _counts(self) -> Buffer:
        return self._gpu.storage("token counts", 4 * self._buffers.max_slots * self._buffers.logits_stride)

    @cached_property
    def _processed(self) -> Buffer:
        return self._gpu.storage("processed logits", self._buffers.logits.size)

    @cached_property
    def _sample_processed(self) -> tuple[Dispatch, ...]:
        buffers = self._buffers
        process = bind_process(
            self._kernels,
            step=buffers.step,
            vocab_shape=self._vocab_shape,
            logit_table=self._device_table,
            counts=self._counts,
            logits=buffers.logits,
            processed=self._processed,
        )
        return Dispatch(single=process, axis="x", count="samples"), self._sampler(self._processed)

    @cached_property
    def _count(self) -> tuple[Dispatch, ...]:
        bound = bind_count(
            self._kernels,
            step=self._buffers.step,
            vocab_shape=self._vocab_shape,
            logit_table=self._device_table,
            tokens=self._buffers.tokens,
            counts=self._counts,
        )
        return (Dispatch(single=bound, axis="none"),)

    @cached_property
    def _logprobs(self) -> tuple[Dispatch, ...]:
        bound = bind_logprobs(
            self._kernels,
            step=self._buffers.step,
            vocab_shape=self._vocab_shape,
            logit_table=self._device_table,
            logits=self._buffers.logits,
            tokens=self._buffers.tokens,
            logprobs=self.records,
        )
        return (Dispatch(single=bound, axis="x", count="samples"),)

    def _sampler(self, logits: Buffer) -> Dispatch:
        bound = bind_sampler(
            self._kernels,
            step=self._buffers.step,
            vocab_shape=self._vocab_shape,
            logits=logits,
            last_tokens=self._buffers.last_tokens,
            tokens=self._buffers.tokens,
        )
        return Dispatch(single=bound, axis="x", count="samples")

    def _advance(self) -> Dispatch:
        return Dispatch(single=self._kernels.get("advance").bind({"step": self._buffers.step}), axis="none")
