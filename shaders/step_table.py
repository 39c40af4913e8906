"""The table that tells the kernels what a step holds: one header, the rows, and three words of four per sample.

    [0]                 rows, samples, index of the first sample word, 0
    [1 + r]             token (or FROM_DEVICE), position, slot, 0
    [first + 3s]        row, slot, position, top_k
    [first + 3s + 1]    temperature, top_p, min_p (f32 bits), low half of the seed
    [first + 3s + 2]    high half of the seed, row of the logits, 0 or 1 + the forced token, 0

Owns the host's side of common/step.wgsl. Knows nothing of requests. The engine's background thread.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

FROM_DEVICE = 0xFFFFFFFF
_SAMPLE = struct.Struct("<4I3f5I")
_ROW = struct.Struct("<4I")
SAMPLE_BYTES, ROW_BYTES = _SAMPLE.size, _ROW.size


class StepTable:
    """Host memory of one step's table, reused from step to step; `bytes_used` counts what must be uploaded."""

    def __init__(self, max_rows: int, max_samples: int) -> None:
        self.max_rows = max_rows
        self.max_samples = max_samples
        self.data: npt.NDArray[np.uint8] = np.zeros(16 * (1 + max_rows + 3 * max_samples), np.uint8)
        self._memory = self.data.data
        self.address = self.data.ctypes.data
        self.num_rows = 0
        self.num_samples = 0

    @property
    def bytes_used(self) -> int:
        """Bytes from the start that this step fills."""
        return 16 * (1 + self.num_rows + 3 * self.num_samples)

    def begin(self, num_rows: int, num_samples: int) -> None:
        """Start a step of so many rows and samples. Raises ValueError beyond the table's size."""
        if not 0 < num_rows <= self.max_rows or not 0 <= num_samples <= self.max_samples:
            raise ValueError(f"a step holds 1 to {self.max_rows} rows and up to {self.max_samples} samples")
        self.num_rows = num_rows
        self.num_samples = num_samples
        _ROW.pack_into(self._memory, 0, num_rows, num_samples, 1 + num_rows, 0)

    def set_row(self, index: int, token: int, position: int, slot: int) -> None:
        """token: an id, or FROM_DEVICE."""
        _ROW.pack_into(self._memory, 16 * (1 + index), token, position, slot, 0)

    def set_sample(
        self,
        index: int,
        *,
        row: int,
        slot: int,
        position: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        logits_row: int,
        forced: int | None = None,
    ) -> None:
        """How sample `index` is drawn, and from which row of the logits; `forced` is told to the host undrawn."""
        _SAMPLE.pack_into(
            self._memory,
            16 * (1 + self.num_rows + 3 * index),
            row,
            slot,
            position,
            top_k,
            temperature,
            top_p,
            min_p,
            seed & 0xFFFFFFFF,
            seed >> 32,
            logits_row,
            0 if forced is None else forced + 1,
            0,
        )

    def set_logits_row(self, index: int, row: int) -> None:
        """Sample `index` only names the row whose logits are computed; nothing is drawn from them."""
        _ROW.pack_into(self._memory, 16 * (1 + self.num_rows + 3 * index), row, 0, 0, 0)
