"""Translates what samples ask of their logits, beyond a plain draw, for the device, and its logprobs back.

Knows samples and the device's tables, not requests or how the kernels do it. The engine's background thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.function_table import Sample
from engine.request import MAX_TOP_LOGPROBS, TokenLogprobs
from models.draw_stage import DrawPart
from shaders.logit_table import LogitTable


def check_sample(sample: Sample, vocab_size: int) -> None:
    """Raise ValueError where a sample that is not plain names what the model has not."""
    top, forced = sample.top_logprobs, sample.forced
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise ValueError(f"logprobs of {top} tokens are out of range")
    if forced is not None and not 0 <= forced < vocab_size:
        raise ValueError(f"forced token {forced} is not in the vocabulary")
    if sample.bitmask is not None and len(sample.bitmask) != mask_bytes(vocab_size):
        raise ValueError(f"a bitmask has {mask_bytes(vocab_size)} bytes, not {len(sample.bitmask)}")
    for token, _ in sample.params.logit_bias:
        if not 0 <= token < vocab_size:
            raise ValueError(f"biased token {token} is not in the vocabulary")


def mask_bytes(vocab_size: int) -> int:
    """Bytes of a bitmask: whole u32 words."""
    return 4 * (-(-vocab_size // 32))


def draw_parts(samples: Sequence[Sample]) -> tuple[DrawPart, ...]:
    """The parts of a step that turn logits into tokens, in order."""
    drawn = [sample for sample in samples if sample.forced is None]
    counts = any(sample.params.counts_tokens for sample in drawn)
    processed = counts or any(sample.bitmask is not None or sample.params.logit_bias for sample in drawn)
    parts: list[DrawPart] = ["sample_processed" if processed else "sample"]
    if counts:
        parts.append("count")
    if any(sample.top_logprobs is not None for sample in samples):
        parts.append("logprobs")
    return tuple(parts)


def fill_logit_table(table: LogitTable, samples: Sequence[Sample]) -> None:
    """Write what each sample asks for. A forced one asks for logprobs at most."""
    table.begin(len(samples))
    for index, sample in enumerate(samples):
        params, drawn = sample.params, sample.forced is None
        biases: dict[int, float] = {}
        for token, bias in params.logit_bias if drawn else ():
            biases[token] = biases.get(token, 0.0) + bias
        table.set_sample(
            index,
            biases=biases,
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            counts=drawn and params.counts_tokens,
            bitmask=sample.bitmask if drawn else None,
            top_logprobs=sample.top_logprobs,
        )


def read_logprobs(
    records: npt.NDArray[np.uint32], samples: Sequence[Sample], vocab_size: int
) -> tuple[TokenLogprobs | None, ...]:
    """What the device reports of each sample that asked. A token that is impossible has a logprob of -inf."""
    found: list[TokenLogprobs | None] = []
    for record, sample in zip(records, samples, strict=True):
        if sample.top_logprobs is None:
            found.append(None)
            continue
        num = 1 + min(sample.top_logprobs, vocab_size)
        ids: list[int] = record[:num, 0].tolist()
        logprobs: list[float] = record[:num, 1].view(np.float32).tolist()
        top = tuple(zip(ids[1:], logprobs[1:], strict=True))
        found.append(TokenLogprobs(token=ids[0], logprob=logprobs[0], top=top))
    return tuple(found)
