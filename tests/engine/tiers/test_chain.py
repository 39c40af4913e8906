"""Keys of kv blocks: equal for equal tokens, different for anything else, and the same in every version."""

from __future__ import annotations

import struct

import pytest

from engine.tiers.chain import BLOCK_TOKENS, KEY_BYTES, chain, next_key, root_key

ROOT = root_key(b"a fingerprint")


def test_keys_stay_what_they_are() -> None:
    """A change here leaves everything that is on disk behind: the fingerprint has to change with it."""
    assert ROOT.hex() == "260482485fa784d73d0d4979c4dcdaec"
    assert next_key(ROOT, (0, 1, 2**32 - 1)).hex() == "a4ad5b71c71eedb12b45203207df69f0"


def test_a_chain_covers_each_position_once() -> None:
    tokens = list(range(3 * BLOCK_TOKENS + 5))
    blocks = chain(ROOT, tokens)
    assert [position for _, _, positions in blocks for position in positions] == tokens
    assert [len(positions) for _, _, positions in blocks] == [64, 64, 64, 5]
    assert [parent for parent, _, _ in blocks] == [ROOT, *(key for _, key, _ in blocks[:-1])]
    assert all(len(key) == KEY_BYTES for _, key, _ in blocks)
    assert chain(ROOT, []) == []


def test_a_common_beginning_has_common_keys() -> None:
    one = [key for _, key, _ in chain(ROOT, list(range(300)))]
    other = [key for _, key, _ in chain(ROOT, [*range(200), 7, *range(201, 300)])]
    assert one[:3] == other[:3]
    assert not set(one[3:]) & set(other[3:])


def test_each_part_of_a_key_counts() -> None:
    keys = {
        next_key(ROOT, (1, 2, 3)),
        next_key(root_key(b"another fingerprint"), (1, 2, 3)),
        next_key(ROOT, (1, 2, 4)),
        next_key(ROOT, (1, 2)),
        next_key(ROOT, (1, 2, 3, 0)),
        next_key(ROOT, (3, 2, 1)),
        next_key(ROOT, (0x01000000, 2, 3)),
        next_key(next_key(ROOT, (1,)), (2, 3)),
    }
    assert len(keys) == 8


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_id_has_32_bits(token: int) -> None:
    with pytest.raises(struct.error):
        next_key(ROOT, (token,))
