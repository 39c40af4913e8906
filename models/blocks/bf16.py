"""BF16: the upper half of a 32-bit float, two to a word, the even element in the low half. No thread of its own."""

import numpy as np

from models.blocks.base import BlockType, Bytes, Floats, Words
from models.blocks.f16 import pack_halves


def _dequantize(rows: Bytes) -> Floats:
    upper = np.ascontiguousarray(rows).view("<u2").astype(np.uint32) << np.uint32(16)
    return upper.view(np.float32)


def _pack(rows: Bytes) -> tuple[Words, Words]:
    return pack_halves(rows, BF16.words_per_64)


BF16 = BlockType(
    name="BF16",
    ggml_id=30,
    block_elements=1,
    block_bytes=2,
    words_per_64=32,
    scale_words_per_64=0,
    dequantize=_dequantize,
    pack=_pack,
)
