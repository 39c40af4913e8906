"""Q4_1: 32 elements in 20 bytes, an f16 scale d, an f16 minimum m, 16 bytes of codes; element = d * code + m.

Packed: 8 words of codes and 2 scale words per 64 elements; a scale word holds one block's d in its low half and its
m in its high half. No thread of its own.
"""

import numpy as np

from models.blocks.base import BlockType, Bytes, Floats, Words, group_rows
from models.blocks.fields import half_bits, half_field, pack_nibbles, split_blocks, unpack_nibbles


def _dequantize(rows: Bytes) -> Floats:
    blocks = split_blocks(rows, Q4_1.block_bytes)
    codes = unpack_nibbles(blocks[:, :, 4:]).astype(np.float32)
    return (half_field(blocks, 0) * codes + half_field(blocks, 2)).reshape(rows.shape[0], -1)


def _pack(rows: Bytes) -> tuple[Words, Words]:
    blocks = split_blocks(rows, Q4_1.block_bytes)
    codes = unpack_nibbles(blocks[:, :, 4:]).reshape(rows.shape[0], -1)
    scales = half_bits(blocks, 0) | (half_bits(blocks, 2) << np.uint32(16))
    return group_rows(pack_nibbles(codes), Q4_1.words_per_64), group_rows(scales, Q4_1.scale_words_per_64)


Q4_1 = BlockType(
    name="Q4_1",
    ggml_id=3,
    block_elements=32,
    block_bytes=20,
    words_per_64=8,
    scale_words_per_64=2,
    dequantize=_dequantize,
    pack=_pack,
)
