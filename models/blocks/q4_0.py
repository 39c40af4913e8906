"""Q4_0: 32 elements in 18 bytes, an f16 scale d then 16 bytes of codes; element = d * (code - 8).

Packed: 8 words of codes per 64 elements and one scale word, d of elements 0..31 in its low half, d of 32..63 in its
high half. No thread of its own.
"""

import numpy as np

from models.blocks.base import BlockType, Bytes, Floats, Words, group_rows
from models.blocks.fields import half_bits, half_field, pack_nibbles, pair_scales, split_blocks, unpack_nibbles


def _dequantize(rows: Bytes) -> Floats:
    blocks = split_blocks(rows, Q4_0.block_bytes)
    codes = unpack_nibbles(blocks[:, :, 2:]).astype(np.float32) - np.float32(8)
    return (half_field(blocks, 0) * codes).reshape(rows.shape[0], -1)


def _pack(rows: Bytes) -> tuple[Words, Words]:
    blocks = split_blocks(rows, Q4_0.block_bytes)
    codes = unpack_nibbles(blocks[:, :, 2:]).reshape(rows.shape[0], -1)
    words = group_rows(pack_nibbles(codes), Q4_0.words_per_64)
    return words, group_rows(pair_scales(half_bits(blocks, 0)), Q4_0.scale_words_per_64)


Q4_0 = BlockType(
    name="Q4_0",
    ggml_id=2,
    block_elements=32,
    block_bytes=18,
    words_per_64=8,
    scale_words_per_64=1,
    dequantize=_dequantize,
    pack=_pack,
)
