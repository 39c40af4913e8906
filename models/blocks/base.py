"""The description of one quantization block type, and the row grouping that all packed layouts share.

Packed device layout: [rows / 8][K / 64][8 rows][words], so that eight neighbouring rows' words for the same 64
elements lie side by side. Rows are padded with zeros to a multiple of 32 and K to a multiple of 64: a padded element
has zero codes and zero scales and so is worth zero. Does not know tensors, files or the GPU. No thread of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint32]
Floats: TypeAlias = npt.NDArray[np.float32]

GROUP_ROWS = 8
PACK_ROWS = 32
PACK_ELEMENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockType:
    """How a tensor's rows are stored. `words_per_64` and `scale_words_per_64` count the u32 words that 64 elements
    of one row take in the packed layout."""

    name: str
    ggml_id: int
    block_elements: int
    block_bytes: int
    words_per_64: int
    scale_words_per_64: int
    dequantize: Callable[[Bytes], Floats]
    """uint8 [rows, bytes] -> float32 [rows, K], bit-exact."""
    pack: Callable[[Bytes], tuple[Words, Words]]
    """uint8 [rows, bytes] -> uint32 words and scales [rows/8, K/64, 8, words]; the reference for the GPU repack."""

    def row_bytes(self, elements: int) -> int:
        """Bytes of one row; `elements` is a multiple of `block_elements`."""
        assert elements % self.block_elements == 0
        return elements // self.block_elements * self.block_bytes


def pad_to(values: npt.NDArray[np.generic], axis: int, multiple: int) -> npt.NDArray[np.generic]:
    """`values` with zeros appended along `axis` up to the next multiple."""
    missing = -values.shape[axis] % multiple
    widths = [(0, 0)] * values.ndim
    widths[axis] = (0, missing)
    return np.pad(values, widths) if missing else values


def group_rows(values: npt.NDArray[np.generic], words_per_64: int) -> Words:
    """uint32 [rows, words of the row] -> [rows/8, K/64, 8, words_per_64], padded with zeros.

    A row may end inside its last 64 elements; its words are filled up first.
    """
    assert values.dtype == np.uint32
    padded = pad_to(pad_to(values, 1, words_per_64), 0, PACK_ROWS)
    chunks = padded.shape[1] // words_per_64
    grouped = padded.reshape(-1, GROUP_ROWS, chunks, words_per_64).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(grouped, dtype=np.uint32)


def no_scales(words: Words) -> Words:
    """The empty scale array of a type without scales, shaped beside its words."""
    return np.zeros((*words.shape[:3], 0), dtype=np.uint32)
