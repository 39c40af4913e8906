"""F16: IEEE half floats, two to a word, the even element in the low half. No thread of its own."""

import numpy as np

from models.blocks.base import BlockType, Bytes, Floats, Words, group_rows, no_scales, pad_to


def pack_halves(rows: Bytes, words_per_64: int) -> tuple[Words, Words]:
    """Pack rows of 16-bit elements; BF16 shares it."""
    even = pad_to(np.ascontiguousarray(rows), 1, 4)  # an odd row ends with half a word
    words = group_rows(np.ascontiguousarray(even).view("<u4").astype(np.uint32), words_per_64)
    return words, no_scales(words)


def _dequantize(rows: Bytes) -> Floats:
    return np.ascontiguousarray(rows).view("<f2").astype(np.float32)


def _pack(rows: Bytes) -> tuple[Words, Words]:
    return pack_halves(rows, F16.words_per_64)


F16 = BlockType(
    name="F16",
    ggml_id=1,
    block_elements=1,
    block_bytes=2,
    words_per_64=32,
    scale_words_per_64=0,
    dequantize=_dequantize,
    pack=_pack,
)
