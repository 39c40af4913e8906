"""The mat-muls as typed calls: each takes a packed matrix and its buffers and yields one dispatch per window.

Owns the choice of tile variants and the strides; knows nothing of layers. The engine's background thread, at load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shaders.device import Buffer
from shaders.dispatch import Constants, Dispatch
from shaders.kernel import KernelCache
from shaders.packing import PackedMatrix, PackedWindow, weights_file


def stride(elements: int) -> int:
    """Elements from one token's activations to the next: padded to the 64 that a mat-mul walks in."""
    return -(-elements // 64) * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulContext:
    """What all mat-muls of a plan share. clusters as shaders/traits.py has it; eps is the folded norm's."""

    kernels: KernelCache
    constants: Constants
    step: Buffer
    empty: Buffer
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedNorm:
    """A norm that its consumer finishes: x * gain and the partial sums of x^2 over `width` elements."""

    x_gain: Buffer
    partials: Buffer
    width: int
    parts: int
    eps: float


PLAIN_CLUSTERS = 8


def matrix_slots(kernels: KernelCache, matrix: PackedMatrix) -> dict[str, str]:
    """How a kernel reads a matrix: its block type, and 32 bytes in one load where that was measured to be faster."""
    gpu = kernels.gpu
    words = "wide" if gpu.adapter.software and "shader-int64" in gpu.features else "narrow"
    return {"words": f"common/words_{words}.wgsl", "weights": weights_file(matrix.format.name)}


def linear(
    context: MatmulContext,
    matrix: PackedMatrix,
    x: Buffer,
    y: Buffer,
    *,
    bias: Buffer | None = None,
    y_stride: int,
    sampled: bool = False,
) -> list[Dispatch]:
    """y[t] = W x[t] + bias without subgroups; over the step's samples where `sampled`. x is [tokens, stride(K)]."""
    found = []
    for window in matrix.windows:
        shape = context.constants.shape(
            k_blocks=matrix.k_blocks,
            rows=window.rows,
            x_stride=stride(matrix.k) // 8,
            y_stride=y_stride,
            first_tile=window.first_tile,
        )
        overrides = {"CLUSTERS": PLAIN_CLUSTERS, "BIAS": bias is not None, "SAMPLED": sampled}
        buffers = {"shape": shape, "bias": bias or context.empty, "x": x, "y": y}
        grid = (-(-window.tiles // PLAIN_CLUSTERS), 1, 1)
        found.append(_tiled(context, "linear", matrix, window, buffers, overrides, grid, sampled=sampled))
    return found


def head(context: MatmulContext, matrix: PackedMatrix, norm: FoldedNorm, y: Buffer, *, y_stride: int) -> list[Dispatch]:
    """Logits [samples, y_stride] of the step's samples, the last norm folded in."""
    return [
        _tiled(
            context,
            "head_fused",
            matrix,
            window,
            _folded(context, matrix, window, norm, y_stride, window.rows) | {"y": y},
            {"CLUSTERS": context.clusters},
            (window.tiles, 1, 1),
            sampled=True,
        )
        for window in matrix.windows
    ]


def qkv(
    context: MatmulContext,
    matrix: PackedMatrix,
    norm: FoldedNorm,
    *,
    first_tile: int,
    bias: Buffer | None,
    heads: Buffer,
    rope: Buffer,
    page_table: Buffer,
    q: Buffer,
    keys: Buffer,
    values: Buffer,
    kv_type: str,
) -> list[Dispatch]:
    """q, k and v (or the part of them that starts at tile `first_tile`), rotated and written to where they belong."""
    found = []
    for window in matrix.windows:
        shifted = PackedWindow(first_tile + window.first_tile, window.rows, window.weights, window.scales)
        buffers = _folded(context, matrix, shifted, norm, 0, window.rows) | {
            "heads": heads,
            "bias": bias or context.empty,
            "rope": rope,
            "page_table": page_table,
            "q": q,
            "k_pages": keys,
            "v_pages": values,
        }
        overrides = {"CLUSTERS": context.clusters, "BIAS": bias is not None}
        slots = {"kv_write": f"common/kv_write_{kv_type}.wgsl"}
        found.append(_tiled(context, "qkv_fused", matrix, window, buffers, overrides, (window.tiles, 1, 1), slots))
    return found


def out(
    context: MatmulContext,
    matrix: PackedMatrix,
    x: Buffer,
    residual: Buffer,
    norm: FoldedNorm,
    *,
    gain: Buffer,
    bias: Buffer | None,
) -> list[Dispatch]:
    """residual += W x + bias, and what the next norm needs of it."""
    found = []
    for window in matrix.windows:
        shape = context.constants.shape(
            k_blocks=matrix.k_blocks,
            rows=window.rows,
            x_stride=stride(matrix.k) // 8,
            y_stride=stride(matrix.rows),
            first_tile=window.first_tile,
            norm_parts=norm.parts,
        )
        buffers = {
            "shape": shape,
            "bias": bias or context.empty,
            "gain": gain,
            "x": x,
            "residual": residual,
            "residual_gain": norm.x_gain,
            "partials": norm.partials,
        }
        overrides = {"CLUSTERS": context.clusters, "BIAS": bias is not None}
        found.append(_tiled(context, "out_fused", matrix, window, buffers, overrides, (window.tiles, 1, 1)))
    return found


def gate_up(context: MatmulContext, matrix: PackedMatrix, norm: FoldedNorm, y: Buffer) -> list[Dispatch]:
    """y = silu(gate) * up of an interleaved matrix; y is [tokens, stride(rows / 2)]."""
    found = []
    outputs = matrix.rows // 2
    for window in matrix.windows:
        rows = min(outputs - window.first_tile * 16, window.tiles * 16)
        buffers = _folded(context, matrix, window, norm, stride(outputs), rows) | {"y": y}
        overrides = {"CLUSTERS": context.clusters}
        found.append(_tiled(context, "gate_up_fused", matrix, window, buffers, overrides, (window.tiles, 1, 1)))
    return found


def _folded(
    context: MatmulContext, matrix: PackedMatrix, window: PackedWindow, norm: FoldedNorm, y_stride: int, rows: int
) -> dict[str, Buffer]:
    shape = context.constants.shape(
        k_blocks=matrix.k_blocks,
        rows=rows,
        x_stride=stride(matrix.k) // 8,
        y_stride=y_stride,
        first_tile=window.first_tile,
        norm_width=norm.width,
        norm_parts=norm.parts,
        norm_eps=norm.eps,
    )
    return {"shape": shape, "x": norm.x_gain, "partials": norm.partials}


def _tiled(
    context: MatmulContext,
    name: str,
    matrix: PackedMatrix,
    window: PackedWindow,
    buffers: Mapping[str, Buffer],
    overrides: Mapping[str, int | bool],
    grid: tuple[int, int, int],
    slots: Mapping[str, str] | None = None,
    *,
    sampled: bool = False,
) -> Dispatch:
    bound = []
    for tile in (1, 8):
        filled = {**matrix_slots(context.kernels, matrix), "tile": f"common/tile{tile}.wgsl", **(slots or {})}
        kernel = context.kernels.get(name, filled, overrides)
        given = {"step": context.step, "weights": window.weights, "scales": window.scales, **buffers}
        bound.append(kernel.bind(given))
    return Dispatch(single=bound[0], tiled=bound[1], grid=grid, count="samples" if sampled else "rows")
