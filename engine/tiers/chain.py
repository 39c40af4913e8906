"""Keys of kv blocks: a hash chained over the model's fingerprint, the parent's key and the block's token ids.

Owns what a key is; equal keys mean equal tokens from the start on, in the same model. Does not know what is stored
under a key. Pure functions, for any thread.

    fingerprint --root_key--> root --tokens[0:64]--> key --tokens[64:128]--> key --tokens[128:141]--> key
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 64
"""Tokens in a kv block; the last one of a chain may have fewer."""

KEY_BYTES = 16

Key = bytes
"""KEY_BYTES bytes."""


def root_key(fingerprint: bytes) -> Key:
    """The parent of every first block of the model with this fingerprint."""
    return blake2b(fingerprint, digest_size=KEY_BYTES, person=b"kv root").digest()


def next_key(parent: Key, tokens: Sequence[int]) -> Key:
    """The key of the block that holds `tokens`, each below 2**32, behind the block `parent`."""
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return blake2b(parent + packed, digest_size=KEY_BYTES, person=b"kv block").digest()


def chain(root: Key, tokens: Sequence[int]) -> list[tuple[Key, Key, range]]:
    """(parent, key, positions) of each block that `tokens` fill, the first one first."""
    blocks: list[tuple[Key, Key, range]] = []
    parent = root
    for start in range(0, len(tokens), BLOCK_TOKENS):
        positions = range(start, min(start + BLOCK_TOKENS, len(tokens)))
        key = next_key(parent, tokens[positions.start : positions.stop])
        blocks.append((parent, key, positions))
        parent = key
    return blocks
