"""F32: plain 32-bit floats, kept as they are. No thread of its own."""

import numpy as np

from models.blocks.base import BlockType, Bytes, Floats, Words, group_rows, no_scales


def _dequantize(rows: Bytes) -> Floats:
    return np.ascontiguousarray(rows).view("<f4").astype(np.float32)


def _pack(rows: Bytes) -> tuple[Words, Words]:
    words = group_rows(np.ascontiguousarray(rows).view("<u4").astype(np.uint32), F32.words_per_64)
    return words, no_scales(words)


F32 = BlockType(
    name="F32",
    ggml_id=0,
    block_elements=1,
    block_bytes=4,
    words_per_64=64,
    scale_words_per_64=0,
    dequantize=_dequantize,
    pack=_pack,
)
