"""Q8_0: 32 elements in 34 bytes, an f16 scale d then 32 signed bytes; element = d * code.

Packed: 16 words per 64 elements, byte j of word w is element 4w + j in two's complement, and one scale word paired as
in Q4_0. No thread of its own.
"""

import numpy as np

from models.blocks.base import BlockType, Bytes, Floats, Words, group_rows
from models.blocks.fields import half_bits, half_field, pair_scales, split_blocks


def _dequantize(rows: Bytes) -> Floats:
    blocks = split_blocks(rows, Q8_0.block_bytes)
    codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).astype(np.float32)
    return (half_field(blocks, 0) * codes).reshape(rows.shape[0], -1)


def _pack(rows: Bytes) -> tuple[Words, Words]:
    blocks = split_blocks(rows, Q8_0.block_bytes)
    codes = np.ascontiguousarray(blocks[:, :, 2:]).reshape(rows.shape[0], -1)
    words = group_rows(codes.view("<u4").astype(np.uint32), Q8_0.words_per_64)
    return words, group_rows(pair_scales(half_bits(blocks, 0)), Q8_0.scale_words_per_64)


Q8_0 = BlockType(
    name="Q8_0",
    ggml_id=8,
    block_elements=32,
    block_bytes=34,
    words_per_64=16,
    scale_words_per_64=1,
    dequantize=_dequantize,
    pack=_pack,
)
