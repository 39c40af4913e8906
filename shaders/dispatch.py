"""A kernel of a plan, ready to be replayed: its buffers are bound, only the step's counts are still open.

Knows grids and tiles, not models. Built on the engine's background thread at load, immutable afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from shaders.arena import Arena
from shaders.device import Buffer, Gpu
from shaders.kernel import Bound
from shaders.run import Grid

_CONSTANTS_BYTES = 1 << 16
TILE = 8
"""Tokens of a tiled mat-mul."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """`count` says what the kernel runs over; `axis` is the grid's axis that counts them.

    Mat-muls and attention have two variants, for one token and for tiles of `tile`, and count tiles in y. Others have
    one, and count each row or sample, or nothing. `grid` holds the other axes; the counted one is ignored.
    """

    single: Bound
    tiled: Bound | None = None
    grid: Grid = (1, 1, 1)
    axis: Literal["x", "y", "none"] = "y"
    count: Literal["rows", "samples"] = "rows"
    tile: int = TILE

    def at(self, rows: int, samples: int) -> tuple[Bound, Grid]:
        """The variant and the grid for a step."""
        count = rows if self.count == "rows" else samples
        bound = self.single
        if self.tiled is not None and count > 1:
            bound, count = self.tiled, -(-count // self.tile)
        x, y, z = self.grid
        if self.axis == "none":
            return bound, self.grid
        return bound, ((count, y, z) if self.axis == "x" else (x, count, z))


class Constants:
    """The uniform blocks of one device: equal ones are made once. Layouts in common/cluster.wgsl and heads.wgsl."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._arena = Arena(gpu, "constants", _CONSTANTS_BYTES, uniform=True)
        self._blocks: dict[bytes, Buffer] = {}

    def shape(
        self,
        *,
        k_blocks: int = 0,
        rows: int = 0,
        x_stride: int = 0,
        y_stride: int = 0,
        first_tile: int = 0,
        norm_width: int = 0,
        norm_parts: int = 0,
        norm_eps: float = 0.0,
    ) -> Buffer:
        """A Shape block; the meaning of each field stands in common/cluster.wgsl and in the kernel's header."""
        block = np.array([k_blocks, rows, x_stride, y_stride, first_tile, norm_width, norm_parts, 0], np.uint32)
        block[7:] = np.array([norm_eps], np.float32).view(np.uint32)
        return self._block(block)

    def heads(
        self,
        *,
        head_dim: int,
        num_q_heads: int,
        num_kv_heads: int,
        rope_dim: int,
        table_stride: int,
        q_stride: int,
        quads: int,
        scale: float,
        window: int = 0,
        sinks: int = 0,
    ) -> Buffer:
        """A Heads block."""
        sizes = [head_dim, num_q_heads, num_kv_heads, rope_dim, table_stride, q_stride, quads, 0, window, sinks, 0, 0]
        block = np.array(sizes, np.uint32)
        block[7:8] = np.array([scale], np.float32).view(np.uint32)
        return self._block(block)

    def _block(self, block: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> Buffer:
        key = block.tobytes()
        if key not in self._blocks:
            self._blocks[key] = self._arena.take("constants", block.nbytes)
            self._gpu.write(self._blocks[key], 0, block)
        return self._blocks[key]
