"""The fields inside quantization blocks: f16 scales and four-bit codes, read from the file's bytes and packed in words.

Does not know which type puts them where. No thread of its own.
"""

import numpy as np

from models.blocks.base import Bytes, Floats, Words, pad_to

_SHIFTS = np.arange(0, 32, 4, dtype=np.uint32)


def split_blocks(rows: Bytes, block_bytes: int) -> Bytes:
    """[rows, bytes] -> [rows, blocks, block_bytes], without a copy where the rows are contiguous."""
    return rows.reshape(rows.shape[0], -1, block_bytes)


def half_field(blocks: Bytes, start: int) -> Floats:
    """The f16 at byte `start` of every block, as float32 [rows, blocks, 1]."""
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<f2").astype(np.float32)


def half_bits(blocks: Bytes, start: int) -> Words:
    """The 16 bits at byte `start` of every block, as uint32 [rows, blocks]."""
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<u2")[:, :, 0].astype(np.uint32)


def pair_scales(scales: Words) -> Words:
    """16-bit scales [rows, blocks of 32] -> uint32 [rows, ceil(blocks / 2)], the even block in the low half."""
    even = pad_to(scales, 1, 2).astype(np.uint32)
    return even[:, 0::2] | (even[:, 1::2] << np.uint32(16))


def unpack_nibbles(codes: Bytes) -> Bytes:
    """uint8 [rows, blocks, 16] -> codes 0..15 as uint8 [rows, blocks, 32].

    Byte j holds element j in its low nibble and element j + 16 in its high one.
    """
    return np.concatenate((codes & np.uint8(15), codes >> np.uint8(4)), axis=2)


def pack_nibbles(codes: Bytes) -> Words:
    """Codes 0..15 [rows, K] -> uint32 [rows, K/8]; nibble j of word w is element 8w + j."""
    wide = codes.reshape(codes.shape[0], -1, 8).astype(np.uint32) << _SHIFTS
    words: Words = np.bitwise_or.reduce(wide, axis=2)
    return words
