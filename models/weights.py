"""Brings a model's tensors to the device, each in the arrangement that the planner asks for, and counts the bytes.

Knows names and block types; not kernels. The engine's background thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from models.errors import TensorMismatch
from models.gguf import GgufFile, TensorInfo
from shaders.device import Buffer, Gpu
from shaders.kernel import KernelCache
from shaders.packing import PackedMatrix, Packer, RawMatrix


class Weights:
    """Tensors of one file on their way to one device. A matrix asked for twice is uploaded once."""

    def __init__(self, gguf: GgufFile, gpu: Gpu, kernels: KernelCache, moved: Callable[[int], None]) -> None:
        self._gguf = gguf
        self._packer = Packer(gpu, kernels, moved)
        self._matrices: dict[tuple[tuple[str, ...], bool], PackedMatrix] = {}
        self._vectors: dict[tuple[tuple[str | None, ...], int], Buffer] = {}

    def block_type(self, name: str) -> str:
        """The block type of a tensor, such as "Q4_1"."""
        return self._tensor(name).block_type.name

    def rows(self, name: str) -> int:
        """Rows of a matrix."""
        return self._tensor(name).shape[0]

    def matrix(self, *names: str, interleaved: bool = False) -> PackedMatrix:
        """Matrices packed as one: stacked, or with their groups of 8 rows interleaved."""
        key = (names, interleaved)
        if key not in self._matrices:
            parts = [_raw(self._tensor(name)) for name in names]
            self._matrices[key] = self._packer.matrix(names[0], parts, interleaved=interleaved)
        return self._matrices[key]

    def vector(self, *names: str | None, sizes: tuple[int, ...] = (), padded: int) -> Buffer:
        """Vectors one after the other as f32 [padded]; None stands for zeros of the size at its place."""
        key = (names, padded)
        if key not in self._vectors:
            parts = [
                self.values(name) if name is not None else np.zeros(sizes[i], np.float32)
                for i, name in enumerate(names)
            ]
            self._vectors[key] = self._packer.vector(names[0] or "zeros", np.concatenate(parts), padded)
        return self._vectors[key]

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """A vector's values on the host."""
        tensor = self._tensor(name)
        return tensor.block_type.dequantize(tensor.data.reshape(1, -1)).reshape(-1)

    def finish(self) -> None:
        """Wait for the last upload and free the staging memory."""
        self._packer.finish()

    def _tensor(self, name: str) -> TensorInfo:
        tensor = self._gguf.tensors.get(name)
        if tensor is None:
            raise TensorMismatch(f"{self._gguf.path.name} has no tensor {name}. Get the file again.")
        return tensor


def _raw(tensor: TensorInfo) -> RawMatrix:
    rows, k = tensor.shape
    return RawMatrix(tensor.block_type, tensor.data.reshape(rows, -1), k)
