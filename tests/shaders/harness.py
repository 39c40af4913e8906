"""What kernel tests share: buffers that are given back, packed matrices, a step's table, and runs that read back.

Not a test. One device, one thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from models.blocks import BLOCK_TYPES, BlockType
from shaders import packing
from shaders.device import Buffer, Gpu
from shaders.dispatch import Constants, Dispatch
from shaders.kernel import KernelCache
from shaders.ops.matmul import MatmulContext, stride
from shaders.packing import PackedMatrix, Packer, RawMatrix
from shaders.run import submit
from shaders.step_table import StepTable
from shaders.traits import Traits, probe

BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}
MAX_ROWS = 64
POISON = np.float32(-12345.0)
"""Outputs start as this, so that what a kernel must not touch can be told."""

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Row = tuple[int, int, int]
"""(token, position, slot)"""


def rng_of(*names: object) -> np.random.Generator:
    """The same numbers for the same case, whatever ran before."""
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def random_rows(block: BlockType, rows: int, k: int, rng: np.random.Generator) -> Bytes:
    """A matrix as it lies in a file, uint8 [rows, bytes]; its weights are about 1 / sqrt(K) in size."""
    weights = (rng.normal(0, 1, (rows, k)) / np.sqrt(k)).astype(np.float32)
    if block.name == "F32":
        return weights.view(np.uint8)
    if block.name == "F16":
        return weights.astype(np.float16).view(np.uint8)
    if block.name == "BF16":
        return np.ascontiguousarray(weights.view(np.uint16)[:, 1::2]).view(np.uint8)
    assert k % block.block_elements == 0
    blocks = k // block.block_elements
    found = rng.integers(0, 256, (rows, blocks, block.block_bytes), np.uint8)
    unit = (0.02 if block.name == "Q8_0" else 0.2) / np.sqrt(k)
    scales = rng.normal(0, unit, (rows, blocks, 1)).astype(np.float16)
    found[:, :, 0:2] = scales.view(np.uint8).reshape(rows, blocks, 2)
    if block.name == "Q4_1":
        minima = (scales * rng.normal(-7.5, 1, scales.shape)).astype(np.float16)
        found[:, :, 2:4] = minima.view(np.uint8).reshape(rows, blocks, 2)
    return found.reshape(rows, -1)


def weights_of(block: BlockType, raw: Bytes) -> npt.NDArray[np.float64]:
    """What the bytes are worth, [rows, K]."""
    return block.dequantize(raw).astype(np.float64)


def padded(values: npt.NDArray[np.generic], width: int) -> Floats:
    """[tokens, n] as f32 with zeros up to `width`."""
    found = np.zeros((len(values), width), np.float32)
    found[:, : values.shape[1]] = values
    return found


@contextmanager
def small_windows(max_binding_bytes: int, staging_bytes: int = 1 << 14) -> Iterator[None]:
    """A device whose bindings are small, so that matrices are cut into windows and sent in parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gpu, "max_binding_bytes", property(lambda self: max_binding_bytes))
        patch.setattr(packing, "STAGING_BYTES", staging_bytes)
        patch.setattr(packing, "ARENA_BYTES", 1 << 20)
        yield


@contextmanager
def giving_back(gpu: Gpu) -> Iterator[None]:
    """Release every buffer that was made inside and still lives."""
    before = set(gpu._buffers)
    yield
    gpu.wait()
    gpu.release([buffer for pointer, buffer in gpu._buffers.items() if pointer not in before])


class Bench:
    """A device with a step's table and a packer. Matrices are packed once for the same case."""

    def __init__(self, kernels: KernelCache) -> None:
        self.kernels = kernels
        self.gpu = kernels.gpu
        self.constants = Constants(self.gpu)
        self.table = StepTable(MAX_ROWS, MAX_ROWS)
        self.step = self.gpu.storage("step", self.table.data.nbytes)
        self.empty = self.gpu.storage("empty", 16)
        self._packer = Packer(self.gpu, kernels, lambda moved: None)
        self._traits: Traits | None = None
        self._matrices: dict[tuple[object, ...], tuple[PackedMatrix, npt.NDArray[np.float64]]] = {}

    def context(self, clusters: int = 1) -> MatmulContext:
        return MatmulContext(
            kernels=self.kernels, constants=self.constants, step=self.step, empty=self.empty, clusters=clusters
        )

    def need_subgroups(self) -> None:
        """Skip the test where the fused kernels cannot run."""
        self._traits = self._traits or probe(self.gpu)
        if self._traits.kernel_set == "plain":
            pytest.skip(self._traits.reason)

    def matrix(
        self, block: str, rows: Sequence[int], k: int, *, interleaved: bool = False, window_tiles: int = 0
    ) -> tuple[PackedMatrix, npt.NDArray[np.float64]]:
        """Random matrices of these rows packed as one, and their weights [sum of rows, K], part after part.

        With `window_tiles`, in windows of so many tiles of 32 rows.
        """
        key = (block, *rows, k, interleaved)
        if (*key, window_tiles) not in self._matrices:
            parts = [random_rows(BLOCKS[block], n, k, rng_of(block, *rows, k, part)) for part, n in enumerate(rows)]
            if window_tiles:
                tile_bytes = 32 * -(-k // 64) * 4 * BLOCKS[block].words_per_64
                with small_windows(window_tiles * tile_bytes, min(1 << 14, window_tiles * tile_bytes)):
                    packer = Packer(self.gpu, self.kernels, lambda moved: None)
                    packed = pack(packer, BLOCKS[block], parts, k, interleaved=interleaved)
            else:
                packed = pack(self._packer, BLOCKS[block], parts, k, interleaved=interleaved)
            weights = np.concatenate([weights_of(BLOCKS[block], part) for part in parts])
            self._matrices[*key, window_tiles] = packed, weights
        return self._matrices[*key, window_tiles]

    def upload(self, name: str, values: npt.NDArray[np.generic]) -> Buffer:
        return self.gpu.upload(name, values)

    def vector(self, name: str, values: Floats) -> Buffer:
        """Padded as gains and biases are."""
        return self.upload(name, padded(values[None], stride(values.size)))

    def fill(self, rows: Sequence[Row], samples: Sequence[int] = ()) -> None:
        """Write the step's table; a sample is the row whose logits are computed."""
        self.table.begin(len(rows), len(samples))
        for index, (token, position, slot) in enumerate(rows):
            self.table.set_row(index, token, position, slot)
        for index, row in enumerate(samples):
            self.table.set_logits_row(index, row)
        self.gpu.write(self.step, 0, self.table.data[: self.table.bytes_used])

    def run(self, dispatches: Sequence[Dispatch], rows: Sequence[Row], samples: Sequence[int] = ()) -> None:
        self.fill(rows, samples)
        submit(self.gpu, [dispatch.at(len(rows), len(samples)) for dispatch in dispatches])

    def floats(self, buffer: Buffer, tokens: int, width: int) -> Floats:
        """[tokens, width] from the buffer's start."""
        return self.gpu.read(buffer, 0, 4 * tokens * width).view(np.float32).reshape(tokens, width)


@contextmanager
def open_bench(kernels: KernelCache) -> Iterator[Bench]:
    with giving_back(kernels.gpu):
        yield Bench(kernels)


def pack(
    packer: Packer, block: BlockType, parts: Sequence[Bytes], k: int, *, interleaved: bool = False
) -> PackedMatrix:
    return packer.matrix("matrix", [RawMatrix(block, part, k) for part in parts], interleaved=interleaved)
