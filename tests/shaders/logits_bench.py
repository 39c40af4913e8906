"""Rows of logits on the device, a slot's token counts for each, and the kernels around the draw bound to them.

Not a test. Sample i reads row i and slot i unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shaders.kernel import Bound, KernelCache
from shaders.logit_table import LogitTable
from shaders.ops.logits import RECORD_BYTES, bind_count, bind_logprobs, bind_process
from shaders.ops.sampling import bind_sampler, bind_support, vocab_shape
from shaders.run import submit
from shaders.step_table import StepTable
from tests.shaders.harness import giving_back
from tests.shaders.sampling_reference import OFF, Logits, Params

MAX_SAMPLES = 2000
POISON = np.float32(1e30)
"""What lies beyond the vocabulary; it must not matter."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a sample asks of its logits. An allowed token's place in `allowed` is True."""

    biases: dict[int, float] = field(default_factory=dict)
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    prompt_ids: Sequence[int] = ()
    generated_ids: Sequence[int] = ()
    allowed: npt.NDArray[np.bool_] | None = None
    top_logprobs: int | None = None

    @property
    def counts(self) -> bool:
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)

    @property
    def bitmask(self) -> bytes | None:
        if self.allowed is None:
            return None
        padded = np.ones(-(-len(self.allowed) // 32) * 32, bool)  # what lies beyond must not matter
        padded[: len(self.allowed)] = self.allowed
        return np.packbits(padded, bitorder="little").tobytes()

    def of(self, logits: Logits) -> npt.NDArray[np.float64]:
        """The processed logits in float64."""
        found = logits.astype(np.float64)
        for token, bias in self.biases.items():
            found[token] += bias
        seen = list({*self.prompt_ids, *self.generated_ids})
        at = found[seen]
        found[seen] = np.where(at < 0, at * self.repetition, at / self.repetition)
        counts = np.bincount(np.array(self.generated_ids, np.int64), minlength=len(logits))
        found -= self.frequency * counts + self.presence * (counts > 0)
        if self.allowed is not None:
            found[~self.allowed] = -np.inf
        return found


class LogitsBench:
    """See the module. last_tokens and tokens start as zeros."""

    def __init__(self, kernels: KernelCache, rows: Logits, wishes: Sequence[Wish], stride: int, threads: int | None):
        self.gpu = kernels.gpu
        self.vocab_size = rows.shape[1]
        self.stride = stride
        self.wishes = wishes
        self.words = -(-self.vocab_size // 32)
        padded = np.full((len(rows), stride), POISON, np.float32)
        padded[:, : self.vocab_size] = rows
        self.table, self.asked = StepTable(1, MAX_SAMPLES), LogitTable(len(rows), self.vocab_size)
        gpu, samples = self.gpu, {"step": self.gpu.storage("step", self.table.data.nbytes)}
        self.step = samples["step"]
        samples["vocab_shape"] = vocab_shape(gpu, self.vocab_size, stride)
        self.logit_table = gpu.storage("logit table", self.asked.data.nbytes)
        self.counts = gpu.upload("counts", self._counts())
        self.logits = gpu.upload("logits", padded)
        self.processed = gpu.upload("processed", np.full_like(padded, POISON))
        self.tokens = gpu.storage("tokens", 4 * MAX_SAMPLES)
        self.last_tokens = gpu.storage("last tokens", 4 * MAX_SAMPLES)
        self.records = gpu.storage("records", RECORD_BYTES * MAX_SAMPLES)
        self.bitmask = gpu.storage("bitmask", 4 * len(rows) * self.words)
        asked = samples | {"logit_table": self.logit_table}
        self._process = bind_process(
            kernels, **asked, counts=self.counts, logits=self.logits, processed=self.processed, threads=threads
        )
        self._count = bind_count(kernels, **asked, tokens=self.tokens, counts=self.counts)
        self._logprobs = bind_logprobs(
            kernels, **asked, logits=self.logits, tokens=self.tokens, logprobs=self.records, threads=threads
        )
        self._sample = bind_sampler(
            kernels, **samples, logits=self.processed, last_tokens=self.last_tokens, tokens=self.tokens
        )
        self._support = bind_support(kernels, **samples, logits=self.processed, bitmask=self.bitmask)

    def _counts(self) -> npt.NDArray[np.uint32]:
        found = np.zeros((len(self.wishes), self.stride), np.uint32)
        for row, wish in zip(found, self.wishes, strict=True):
            np.add.at(row, np.array(wish.generated_ids, np.int64), 1)
            row[np.array(wish.prompt_ids, np.int64)] |= np.uint32(1 << 31)
        return found

    def _run(self, bound: Bound, samples: Sequence[Params] | None = None, *, single: bool = False) -> int:
        samples = [{}] * len(self.wishes) if samples is None else samples
        self.table.begin(1, len(samples))
        for index, given in enumerate(samples):
            sample = {"row": 0, "slot": index, "position": 0, "seed": 1, "logits_row": index} | OFF | dict(given)
            self.table.set_sample(index, **sample)
        self.gpu.write(self.step, 0, self.table.data[: self.table.bytes_used])
        self.asked.begin(len(self.wishes))
        for index, wish in enumerate(self.wishes):
            self.asked.set_sample(
                index,
                biases=wish.biases,
                repetition=wish.repetition,
                frequency=wish.frequency,
                presence=wish.presence,
                counts=wish.counts,
                bitmask=wish.bitmask,
                top_logprobs=wish.top_logprobs,
            )
        self.gpu.write(self.logit_table, 0, self.asked.data[: self.asked.bytes_used // 4])
        submit(self.gpu, [(bound, (1 if single else len(samples), 1, 1))])
        return len(samples)

    def process(self) -> Logits:
        """Processed logits of every row, padding included."""
        count = self._run(self._process)
        return self.gpu.read(self.processed).view(np.float32)[: count * self.stride].reshape(count, -1)

    def supports(self, samples: Sequence[Params]) -> npt.NDArray[np.bool_]:
        """Which processed logits may be drawn, [samples, vocab_size]."""
        count = self._run(self._support, samples)
        bits = self.gpu.read(self.bitmask, 0, 4 * count * self.words).reshape(count, -1)
        return np.unpackbits(bits, axis=1, bitorder="little")[:, : self.vocab_size].astype(bool)

    def draw(self, samples: Sequence[Params]) -> npt.NDArray[np.int64]:
        """Tokens drawn from processed logits."""
        count = self._run(self._sample, samples)
        return self.gpu.read(self.tokens, 0, 4 * count).view(np.uint32).astype(np.int64)

    def count(self, tokens: Sequence[int]) -> npt.NDArray[np.uint32]:
        """All rows of counts after these tokens were drawn."""
        self.gpu.write(self.tokens, 0, np.array(tokens, np.uint32))
        self._run(self._count, single=True)
        return self.gpu.read(self.counts).view(np.uint32)[: len(self.wishes) * self.stride].reshape(-1, self.stride)

    def logprobs(self, tokens: Sequence[int]) -> tuple[npt.NDArray[np.uint32], Logits]:
        """Ids and logprobs, [samples, 21]: the given tokens, then the likeliest."""
        self.gpu.write(self.tokens, 0, np.array(tokens, np.uint32))
        count = self._run(self._logprobs)
        records = self.gpu.read(self.records, 0, RECORD_BYTES * count).view(np.uint32).reshape(count, -1, 2)
        return records[..., 0], np.ascontiguousarray(records[..., 1]).view(np.float32)


@contextmanager
def logits_bench(
    kernels: KernelCache, rows: Logits, wishes: Sequence[Wish], *, stride: int = 0, threads: int | None = None
) -> Iterator[LogitsBench]:
    """A bench for as many wishes as rows; a single row stands for all."""
    rows = np.atleast_2d(rows)
    if len(rows) == 1:
        rows = np.repeat(rows, len(wishes), axis=0)
    with giving_back(kernels.gpu):
        yield LogitsBench(kernels, rows, wishes, stride or -(-rows.shape[1] // 4) * 4, threads)
