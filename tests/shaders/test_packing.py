"""The repack on the device against each block type's own reference, bit for bit, however a matrix is cut."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from models.blocks import BlockType
from shaders.device import Gpu
from shaders.errors import BindingError
from shaders.kernel import KernelCache
from shaders.packing import PackedMatrix, Packer, RawMatrix
from tests.shaders.harness import BLOCKS, Bytes, giving_back, pack, random_rows, rng_of, small_windows

Words = npt.NDArray[np.uint32]
SHAPES = [(1, 32), (7, 64), (8, 96), (33, 160), (100, 320)]
FLOAT_SHAPES = [(1, 1), (7, 63), (8, 65), (33, 101), (100, 320)]
EVERY_BLOCK = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
CASES = [
    pytest.param(block, *shape, id=f"{block.name}-{shape[0]}x{shape[1]}")
    for block in BLOCKS.values()
    for shape in (FLOAT_SHAPES if block.block_elements == 1 else SHAPES)
]


@pytest.fixture
def packer(gpu: Gpu, kernels: KernelCache) -> Iterator[Packer]:
    with giving_back(gpu):
        yield Packer(gpu, kernels, lambda moved: None)


def read_back(gpu: Gpu, matrix: PackedMatrix) -> tuple[Words, Words]:
    """Words and scales of all windows, one after the other, in the reference's shapes."""
    found = []
    for name, words in (("weights", matrix.format.words_per_64), ("scales", matrix.format.scale_words_per_64)):
        parts = []
        for window in matrix.windows:
            size = 4 * window.tiles * 32 * matrix.k_blocks * words
            parts.append(gpu.read(getattr(window, name), 0, size).view(np.uint32) if size else np.zeros(0, np.uint32))
        groups = 4 * sum(window.tiles for window in matrix.windows)
        found.append(np.concatenate(parts).reshape(groups, matrix.k_blocks, 8, words))
    return found[0], found[1]


def check(gpu: Gpu, matrix: PackedMatrix, block: BlockType, raw: Bytes) -> None:
    words, scales = read_back(gpu, matrix)
    expected_words, expected_scales = block.pack(raw)
    assert words.shape == expected_words.shape and scales.shape == expected_scales.shape
    assert np.array_equal(words, expected_words)
    assert np.array_equal(scales, expected_scales)
    first = 0
    for window in matrix.windows:
        assert window.first_tile == first
        first += window.tiles
    assert sum(window.rows for window in matrix.windows) == matrix.rows == len(raw)


def any_bytes(block: BlockType, rows: int, k: int) -> Bytes:
    """Whatever a file may hold, NaN patterns among it."""
    return rng_of(block.name, rows, k).integers(0, 256, (rows, block.row_bytes(k)), np.uint8)


def interleave(parts: Sequence[Bytes]) -> Bytes:
    """Groups of eight rows of each part in turn."""
    groups = np.stack([part.reshape(-1, 8, part.shape[1]) for part in parts], axis=1)
    return groups.reshape(-1, parts[0].shape[1])


@pytest.mark.parametrize(("block", "rows", "k"), CASES)
def test_is_the_reference_to_the_bit(gpu: Gpu, packer: Packer, block: BlockType, rows: int, k: int) -> None:
    raw = any_bytes(block, rows, k)
    check(gpu, pack(packer, block, [raw], k), block, raw)


@EVERY_BLOCK
def test_stacked_parts(gpu: Gpu, packer: Packer, block: BlockType) -> None:
    parts = [any_bytes(block, rows, 96) for rows in (40, 8, 16)]
    check(gpu, pack(packer, block, parts, 96), block, np.concatenate(parts))


@EVERY_BLOCK
def test_interleaved_parts(gpu: Gpu, packer: Packer, block: BlockType) -> None:
    parts = [any_bytes(block, rows, 96) for rows in (40, 40)]
    check(gpu, pack(packer, block, parts, 96, interleaved=True), block, interleave(parts))


@pytest.mark.parametrize("tiles", [1, 2, 3])
@pytest.mark.parametrize("way", ["single", "stacked", "interleaved"])
@EVERY_BLOCK
def test_windows(gpu: Gpu, kernels: KernelCache, block: BlockType, way: str, tiles: int) -> None:
    """Windows of a few tiles; a small staging buffer sends a window's rows in several parts."""
    k = 96
    parts = [any_bytes(block, rows, k) for rows in {"single": [203], "stacked": [40, 96, 64]}.get(way, [104, 104])]
    whole = interleave(parts) if way == "interleaved" else np.concatenate(parts)
    tile_bytes = 32 * 2 * 4 * block.words_per_64
    with giving_back(gpu), small_windows(tiles * tile_bytes + 12, max(1500, 8 * block.row_bytes(k))):
        matrix = pack(Packer(gpu, kernels, lambda moved: None), block, parts, k, interleaved=way == "interleaved")
        assert len(matrix.windows) == -(-len(whole) // (32 * tiles))
        check(gpu, matrix, block, whole)


def test_rows_that_are_not_contiguous_in_memory(gpu: Gpu, packer: Packer) -> None:
    block = BLOCKS["Q8_0"]
    wide = any_bytes(block, 40, 192)
    raw = wide[:, : block.row_bytes(96)]
    check(gpu, pack(packer, block, [raw], 96), block, np.ascontiguousarray(raw))


def test_moved_hears_of_every_byte(gpu: Gpu, kernels: KernelCache) -> None:
    block = BLOCKS["Q4_0"]
    heard: list[int] = []
    raw = any_bytes(block, 203, 96)
    with giving_back(gpu), small_windows(1 << 14, 3000):
        pack(Packer(gpu, kernels, heard.append), block, [raw], 96)
    assert sum(heard) == raw.nbytes
    assert len(heard) > 1 and max(heard) <= 3000


def test_stopped_by_moved_everything_stays_usable(gpu: Gpu, kernels: KernelCache) -> None:
    class StopError(Exception):
        pass

    block = BLOCKS["Q4_1"]
    raw = any_bytes(block, 203, 96)
    stopping = [True]

    def moved(count: int) -> None:
        if stopping[0]:
            raise StopError

    with giving_back(gpu):
        packer = Packer(gpu, kernels, moved)
        with pytest.raises(StopError):
            pack(packer, block, [raw], 96)
        stopping[0] = False
        check(gpu, pack(packer, block, [raw], 96), block, raw)
        packer.finish()
        check(gpu, pack(Packer(gpu, kernels, moved), block, [raw], 96), block, raw)


def test_finish_gives_the_staging_memory_back(gpu: Gpu, kernels: KernelCache) -> None:
    with giving_back(gpu):
        before = gpu.allocated_bytes
        packer = Packer(gpu, kernels, lambda moved: None)
        assert gpu.allocated_bytes > before
        packer.finish()
        assert gpu.allocated_bytes == before


def test_vectors_end_in_zeros(gpu: Gpu, packer: Packer) -> None:
    values = np.arange(1, 38, dtype=np.float32)
    found = gpu.read(packer.vector("gain", values, 64)).view(np.float32)
    assert np.array_equal(found, np.pad(values, (0, 27)))


def test_refuses_parts_that_cannot_share_a_matrix(packer: Packer) -> None:
    q4, f16 = BLOCKS["Q4_0"], BLOCKS["F16"]
    rows = {k: random_rows(q4, 8, k, rng_of(k)) for k in (64, 96)}
    with pytest.raises(BindingError, match="differ in type or width"):
        packer.matrix("m", [RawMatrix(q4, rows[64], 64), RawMatrix(q4, rows[96], 96)])
    with pytest.raises(BindingError, match="differ in type or width"):
        packer.matrix("m", [RawMatrix(q4, rows[64], 64), RawMatrix(f16, random_rows(f16, 8, 64, rng_of(1)), 64)])
    with pytest.raises(BindingError, match="whole group of 8 rows"):
        packer.matrix("m", [RawMatrix(q4, rows[64], 64), RawMatrix(q4, rows[64][:7], 64)])


def test_refuses_rows_wider_than_the_staging_window(gpu: Gpu, kernels: KernelCache) -> None:
    block = BLOCKS["F32"]
    with giving_back(gpu), small_windows(1 << 20, 3000):
        packer = Packer(gpu, kernels, lambda moved: None)
        with pytest.raises(BindingError, match="staging window"):
            pack(packer, block, [any_bytes(block, 8, 100)], 100)


def test_refuses_a_tile_wider_than_a_binding(gpu: Gpu, kernels: KernelCache) -> None:
    block = BLOCKS["F32"]
    with giving_back(gpu), small_windows(8000, 3000):
        packer = Packer(gpu, kernels, lambda moved: None)
        with pytest.raises(BindingError):
            pack(packer, block, [any_bytes(block, 8, 64)], 64)
