"""Block types against bytes and values made by ggml's own quantizer, and the packed device layout against both."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from models.blocks import BLOCK_TYPES, BlockType
from models.blocks.base import Bytes, Floats, Words

BLOCKS = load_file(Path(__file__).parents[1] / "data" / "gguf_types" / "blocks.safetensors")
BY_NAME = {block.name: block for block in BLOCK_TYPES.values()}
QUANTIZED = ("Q8_0", "Q4_1", "Q4_0")


def random_rows(block: BlockType, rows: int, elements: int, seed: int = 5) -> Bytes:
    """Rows of real blocks, drawn with replacement from the quantizer's output."""
    if block.name == "F32":
        return BLOCKS["source.f32"].reshape(-1)[: rows * elements].reshape(rows, elements).view(np.uint8)
    pool = BLOCKS[f"{block.name}.bytes"].reshape(-1, block.block_bytes)
    picks = np.random.default_rng(seed).integers(0, len(pool), (rows, elements // block.block_elements))
    return pool[picks].reshape(rows, -1)


@pytest.mark.parametrize("name", BY_NAME)
def test_registered_by_its_number(name: str) -> None:
    assert BLOCK_TYPES[BY_NAME[name].ggml_id] is BY_NAME[name]


@pytest.mark.parametrize("which", ["", "random."])
@pytest.mark.parametrize("name", ["F16", "BF16", *QUANTIZED])
def test_dequantize_is_bit_exact(name: str, which: str) -> None:
    values = BY_NAME[name].dequantize(BLOCKS[f"{name}.{which}bytes"])
    expected = BLOCKS[f"{name}.{which}f32"]
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


def test_f32_is_kept() -> None:
    source = BLOCKS["source.f32"]
    np.testing.assert_array_equal(BY_NAME["F32"].dequantize(source.view(np.uint8)), source)


def test_bytes_per_row() -> None:
    assert {name: block.row_bytes(64) for name, block in BY_NAME.items()} == {
        "F32": 256,
        "F16": 128,
        "BF16": 128,
        "Q8_0": 68,
        "Q4_1": 40,
        "Q4_0": 36,
    }


def rows_of(words: Words, num_rows: int) -> Words:
    """[N/8, K/64, 8, words] -> [num_rows, all words of the row]; the inverse of the row grouping."""
    return words.transpose(0, 2, 1, 3).reshape(words.shape[0] * 8, -1)[:num_rows]


def halves(words: Words) -> Floats:
    return np.ascontiguousarray(words).view("<f2").astype(np.float32)


def read_packed(block: BlockType, words: Words, scales: Words, num_rows: int) -> Floats:
    """What a kernel reads out of the packed layout, written from the layout's description alone."""
    row_words, row_scales = rows_of(words, num_rows), rows_of(scales, num_rows)
    if block.name == "F32":
        return row_words.view(np.float32)
    if block.name == "F16":
        return halves(row_words)
    if block.name == "BF16":
        pairs = np.stack((row_words << np.uint32(16), row_words & np.uint32(0xFFFF0000)), axis=2)
        return pairs.view(np.float32).reshape(num_rows, -1)
    codes: npt.NDArray[np.float32]
    if block.name == "Q8_0":
        codes = np.ascontiguousarray(row_words).view(np.int8).astype(np.float32)
    else:
        nibbles = [(row_words >> np.uint32(4 * place)) & np.uint32(15) for place in range(8)]
        codes = np.stack(nibbles, axis=2).reshape(num_rows, -1).astype(np.float32)
    fields = halves(row_scales)
    if block.name == "Q4_1":
        return codes * np.repeat(fields[:, 0::2], 32, axis=1) + np.repeat(fields[:, 1::2], 32, axis=1)
    return (codes - np.float32(8 if block.name == "Q4_0" else 0)) * np.repeat(fields, 32, axis=1)


@pytest.mark.parametrize("num_rows, elements", [(32, 64), (1, 64), (33, 128), (5, 96), (64, 160), (40, 32)])
@pytest.mark.parametrize("name", BY_NAME)
def test_packed_layout_holds_the_same_values(name: str, num_rows: int, elements: int) -> None:
    block = BY_NAME[name]
    if name == "F32":
        num_rows = min(num_rows, 12)
    rows = random_rows(block, num_rows, elements)
    words, scales = block.pack(rows)
    padded_rows, chunks = -(-num_rows // 32) * 32, -(-elements // 64)
    assert words.dtype == scales.dtype == np.uint32
    assert words.shape == (padded_rows // 8, chunks, 8, block.words_per_64)
    assert scales.shape == (padded_rows // 8, chunks, 8, block.scale_words_per_64)
    values = read_packed(block, words, scales, padded_rows)
    np.testing.assert_array_equal(values[:num_rows, :elements], block.dequantize(rows))
    assert not values[num_rows:].any()
    assert not values[:, elements:].any()


@pytest.mark.parametrize("name", ["F16", "BF16", "F32"])
def test_odd_rows_of_floats_pack(name: str) -> None:
    block = BY_NAME[name]
    rows = np.arange(3 * 7 * block.block_bytes, dtype=np.uint8).reshape(3, -1)
    words, scales = block.pack(rows)
    np.testing.assert_array_equal(read_packed(block, words, scales, 3)[:, :7], block.dequantize(rows))


def test_first_word_by_hand() -> None:
    """One Q4_1 block with code j for element j % 16, d = 1 and m = 2."""
    codes = np.array([low | low << 4 for low in range(16)], np.uint8)
    row = np.concatenate((np.array([1, 2], "<f2").view(np.uint8), codes))[None, :]
    words, scales = BY_NAME["Q4_1"].pack(row)
    assert list(words[0, 0, 0]) == [0x76543210, 0xFEDCBA98, 0x76543210, 0xFEDCBA98, 0, 0, 0, 0]
    assert list(scales[0, 0, 0]) == [0x40003C00, 0]
