"""Matrices in the packed device layout, cut into windows that one binding can hold, and the upload that packs them.

Owns the route of raw blocks: memory-mapped file -> a bounded staging window -> one repack kernel -> packed words.
Knows block types by their sizes and shader files only; not what a matrix is for. The engine's background thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shaders.arena import Arena
from shaders.device import Buffer, Gpu
from shaders.errors import BindingError
from shaders.kernel import KernelCache
from shaders.run import submit

STAGING_BYTES = 4 << 20
STAGING_WINDOWS = 4
"""Windows that may be queued before the upload waits: host memory in flight is bounded by their product."""

ARENA_BYTES = 32 << 20
TILE_ROWS = 32
GROUP_ROWS = 8


class BlockFormat(Protocol):
    """What packing must know of a block type; models/blocks has the real ones."""

    @property
    def name(self) -> str: ...
    @property
    def words_per_64(self) -> int: ...
    @property
    def scale_words_per_64(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RawMatrix:
    """A matrix as it lies in the file: uint8 [rows, bytes per row], K elements per row."""

    format: BlockFormat
    data: npt.NDArray[np.uint8]
    k: int


@dataclass(frozen=True, slots=True)
class PackedWindow:
    """Tiles of 32 rows of a packed matrix: `first_tile` and `rows` (real rows, the last tile may be padded)."""

    first_tile: int
    rows: int
    weights: Buffer
    scales: Buffer

    @property
    def tiles(self) -> int:
        """Tiles in this window."""
        return -(-self.rows // TILE_ROWS)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix on the device, [rows, K] with K padded to 64."""

    format: BlockFormat
    rows: int
    k: int
    windows: tuple[PackedWindow, ...]

    @property
    def k_blocks(self) -> int:
        """Slices of 64 along K."""
        return -(-self.k // 64)


def weights_file(block_type: str) -> str:
    """The shader file that fills the slot <weights> for a block type."""
    return f"common/weights_{block_type.lower()}.wgsl"


def _raw_file(block_type: str) -> str:
    name = "half" if block_type in ("F16", "BF16") else block_type.lower()
    return f"common/raw_{name}.wgsl"


def matrix_bytes(format: BlockFormat, rows: int, k: int, max_binding_bytes: int) -> Iterator[int]:
    """Sizes of a packed matrix's parts: weights, then scales, of one window after the other."""
    for count in _tiles_of_windows(format, rows, k, max_binding_bytes):
        yield from _window_bytes(format, count, k)


def _tiles_of_windows(format: BlockFormat, rows: int, k: int, max_binding_bytes: int) -> Iterator[int]:
    """Tiles in each window, as many as a binding holds; nothing where it holds none."""
    tiles = -(-rows // TILE_ROWS)
    per_window = max_binding_bytes // max(_window_bytes(format, 1, k))
    while tiles and per_window:
        yield min(tiles, per_window)
        tiles -= min(tiles, per_window)


def _window_bytes(format: BlockFormat, tiles: int, k: int) -> tuple[int, int]:
    slices = tiles * TILE_ROWS * -(-k // 64)
    return slices * 4 * format.words_per_64, slices * 4 * format.scale_words_per_64


class Packer:
    """Uploads matrices of one model. `moved(n)` hears of every n bytes; it may raise to stop the load."""

    def __init__(self, gpu: Gpu, kernels: KernelCache, moved: Callable[[int], None]) -> None:
        self._gpu = gpu
        self._kernels = kernels
        self._moved = moved
        self._arena = Arena(gpu, "weights", ARENA_BYTES)
        self._raw = gpu.storage("staging", STAGING_BYTES)
        self._window = gpu.uniform("window", np.zeros(8, np.uint32))
        self._queued = 0

    def matrix(self, name: str, parts: Sequence[RawMatrix], *, interleaved: bool = False) -> PackedMatrix:
        """Pack matrices of one type and one K as one: rows stacked, or their groups of 8 rows interleaved.

        Raises BindingError where they cannot share a matrix, OutOfDeviceMemory where the device is full.
        """
        first = parts[0]
        if any(p.format.name != first.format.name or p.k != first.k for p in parts):
            raise BindingError(f"{name}: its parts differ in type or width")
        if len(parts) > 1 and any(p.data.shape[0] % GROUP_ROWS for p in parts):
            raise BindingError(f"{name}: its parts do not end with a whole group of {GROUP_ROWS} rows")
        rows = sum(p.data.shape[0] for p in parts)
        matrix = self._allocate(name, first.format, rows, first.k)
        step = len(parts) if interleaved else 1
        offset = 0
        for index, part in enumerate(parts):
            first_group = index if interleaved else offset
            self._fill(matrix, part, first_group, step)
            offset += part.data.shape[0] // GROUP_ROWS
        return matrix

    def vector(self, name: str, values: npt.NDArray[np.float32], padded: int) -> Buffer:
        """An f32 vector [padded], zeros behind its values."""
        whole = np.zeros(padded, np.float32)
        whole[: values.size] = values
        vector = self._arena.take(name, whole.nbytes)
        self._gpu.write(vector, 0, whole)
        self._moved(values.nbytes)
        return vector

    def finish(self) -> None:
        """Wait for the last window and give the staging memory back."""
        self._gpu.wait()
        self._gpu.release([self._raw, self._window])

    def _allocate(self, name: str, format: BlockFormat, rows: int, k: int) -> PackedMatrix:
        windows: list[PackedWindow] = []
        tile = 0
        for count in _tiles_of_windows(format, rows, k, self._gpu.max_binding_bytes):
            weights, scales = _window_bytes(format, count, k)
            windows.append(
                PackedWindow(
                    first_tile=tile,
                    rows=min(rows - tile * TILE_ROWS, count * TILE_ROWS),
                    weights=self._arena.take(name, weights),
                    scales=self._arena.take(f"{name} scales", scales),
                )
            )
            tile += count
        if not windows:
            raise BindingError(f"{name}: {TILE_ROWS} of its rows are larger than one binding of this device")
        return PackedMatrix(format, rows, k, tuple(windows))

    def _fill(self, matrix: PackedMatrix, part: RawMatrix, first_group: int, step: int) -> None:
        """Send a part's rows to groups first_group, first_group + step, ... of the matrix."""
        groups = -(-part.data.shape[0] // GROUP_ROWS)
        per_send = max(1, STAGING_BYTES // (GROUP_ROWS * part.data.shape[1]))
        for window in matrix.windows:
            low = window.first_tile * TILE_ROWS // GROUP_ROWS
            high = low + window.tiles * TILE_ROWS // GROUP_ROWS
            begin = max(0, -(-(low - first_group) // step))
            end = min(groups, -(-(high - first_group) // step))
            for group in range(begin, end, per_send):
                rows = part.data[group * GROUP_ROWS : min(end, group + per_send) * GROUP_ROWS]
                self._send(matrix, window, rows, part, first_group + group * step - low, step)

    def _send(
        self,
        matrix: PackedMatrix,
        window: PackedWindow,
        rows: npt.NDArray[np.uint8],
        part: RawMatrix,
        first_group: int,
        step: int,
    ) -> None:
        flat = rows.reshape(-1)
        if flat.nbytes > STAGING_BYTES:
            raise BindingError(f"eight rows of {flat.nbytes // 8} bytes do not fit the staging window")
        if flat.nbytes % 4:
            flat = np.pad(flat, (0, 4 - flat.nbytes % 4))
        constants = np.array(
            [rows.shape[0], rows.shape[1], part.k, matrix.k_blocks, first_group, step, 0, 0], np.uint32
        )
        self._gpu.write(self._window, 0, constants)
        self._gpu.write(self._raw, 0, flat)
        kernel = self._kernels.get("repack", {"raw_type": _raw_file(part.format.name)})
        buffers = {"window": self._window, "raw": self._raw, "weights": window.weights, "scales": window.scales}
        submit(self._gpu, [(kernel.bind(buffers), (-(-rows.shape[0] * matrix.k_blocks // 64), 1, 1))])
        self._queued += 1
        if self._queued % STAGING_WINDOWS == 0:
            self._gpu.wait()
        self._moved(rows.nbytes)
