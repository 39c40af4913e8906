"""What a step's samples ask of their logits beyond a plain draw: biases, penalties, a bitmask, logprobs.

In u32 words, eight of them per sample ahead of the lists:

    [8s]       first word of its biases, how many they are, first word of its bitmask (0: none), 1 if it counts tokens
    [8s + 4]   repetition, frequency and presence penalty (f32 bits), 0 or 1 + the number of likeliest tokens to report
    [...]      biases: token, f32 bits; bitmasks: ceil(vocab / 32) words, lowest bit = lowest id

Owns the host's side of common/logit_table.wgsl. Knows nothing of requests. The engine's background thread.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

MAX_BIASES = 300
MAX_TOP = 20
"""Likeliest tokens that one sample may ask for."""

_WORDS = 8
_SAMPLE = struct.Struct("<4I3fI")


def sample_words(vocab_size: int) -> int:
    """u32 words that a sample takes at most."""
    return _WORDS + 2 * MAX_BIASES + -(-vocab_size // 32)


class LogitTable:
    """Host memory of one step's table, reused from step to step; `bytes_used` counts what must be uploaded."""

    def __init__(self, max_samples: int, vocab_size: int) -> None:
        self._mask_words = -(-vocab_size // 32)
        self.data: npt.NDArray[np.uint32] = np.zeros(max_samples * sample_words(vocab_size), np.uint32)
        self.address = self.data.ctypes.data
        self._used = 0

    @property
    def bytes_used(self) -> int:
        """Bytes from the start that this step fills."""
        return 4 * self._used

    def begin(self, num_samples: int) -> None:
        """Start a step of so many samples, all of which ask for nothing yet."""
        self._used = _WORDS * num_samples
        self.data[: self._used] = 0

    def set_sample(
        self,
        index: int,
        *,
        biases: Mapping[int, float],
        repetition: float,
        frequency: float,
        presence: float,
        counts: bool,
        bitmask: bytes | None,
        top_logprobs: int | None,
    ) -> None:
        """What sample `index` asks for, once a step. The bitmask has ceil(vocab / 32) words."""
        first_bias = self._take(2 * len(biases))
        pairs = self.data[first_bias : self._used].reshape(-1, 2)
        pairs[:, 0] = list(biases)
        pairs[:, 1] = np.array(list(biases.values()), np.float32).view(np.uint32)
        first_mask = 0
        if bitmask is not None:
            first_mask = self._take(self._mask_words)
            self.data[first_mask : self._used] = np.frombuffer(bitmask, "<u4")
        asked = 0 if top_logprobs is None else 1 + top_logprobs
        _SAMPLE.pack_into(
            self.data.data,
            4 * _WORDS * index,
            first_bias,
            len(biases),
            first_mask,
            int(counts),
            repetition,
            frequency,
            presence,
            asked,
        )

    def _take(self, words: int) -> int:
        first = self._used
        self._used += words
        return first
