"""Embedding, norms and the small element-wise kernels as typed calls. Knows nothing of layers.

The engine's background thread, at load.
"""

from __future__ import annotations

from shaders.device import Buffer
from shaders.dispatch import Dispatch
from shaders.ops.matmul import FoldedNorm, MatmulContext, matrix_slots, stride
from shaders.packing import PackedMatrix


def embed(
    context: MatmulContext,
    matrix: PackedMatrix,
    x: Buffer,
    *,
    last_tokens: Buffer,
    folded: FoldedNorm | None = None,
    gain: Buffer | None = None,
) -> list[Dispatch]:
    """x[r] = the embedding of row r's token; with `folded`, also what the first norm needs, multiplied by `gain`."""
    found = []
    for window in matrix.windows:
        shape = context.constants.shape(
            k_blocks=matrix.k_blocks,
            rows=window.rows,
            x_stride=stride(matrix.k) // 4,
            first_tile=window.first_tile,
            norm_parts=folded.parts if folded else 0,
        )
        buffers = {
            "step": context.step,
            "last_tokens": last_tokens,
            "shape": shape,
            "weights": window.weights,
            "scales": window.scales,
            "x": x,
        }
        if folded is not None and gain is not None:
            buffers |= {"gain": gain, "x_gain": folded.x_gain, "partials": folded.partials}
        name = "embed_fused" if folded is not None else "embed"
        kernel = context.kernels.get(name, matrix_slots(context.kernels, matrix))
        found.append(Dispatch(single=kernel.bind(buffers), axis="x"))
    return found


def rms_norm(context: MatmulContext, x: Buffer, y: Buffer, *, gain: Buffer, width: int, eps: float) -> Dispatch:
    """y[t] = norm of x[t], both [tokens, stride(width)]."""
    vectors = stride(width) // 4
    shape = context.constants.shape(rows=width, x_stride=vectors, y_stride=vectors, norm_width=width, norm_eps=eps)
    kernel = context.kernels.get("rms_norm")
    return Dispatch(single=kernel.bind({"shape": shape, "gain": gain, "x": x, "y": y}), axis="x")


def norm_prepare(context: MatmulContext, x: Buffer, norm: FoldedNorm, *, gain: Buffer) -> Dispatch:
    """What a fused stage needs of x [tokens, stride(width)] that a plain stage wrote."""
    shape = context.constants.shape(x_stride=stride(norm.width) // 4, norm_parts=norm.parts)
    buffers = {"shape": shape, "gain": gain, "x": x, "x_gain": norm.x_gain, "partials": norm.partials}
    return Dispatch(single=context.kernels.get("norm_prepare").bind(buffers), axis="x")


def add(context: MatmulContext, x: Buffer, y: Buffer, *, width: int) -> Dispatch:
    """y += x, both [tokens, stride(width)]."""
    return _elementwise(context, "add", {"x": x, "y": y}, width)


def silu_mul(context: MatmulContext, gate: Buffer, y: Buffer, *, width: int) -> Dispatch:
    """y = silu(gate) * y, both [tokens, stride(width)]."""
    return _elementwise(context, "silu_mul", {"gate": gate, "y": y}, width)


def _elementwise(context: MatmulContext, name: str, buffers: dict[str, Buffer], width: int) -> Dispatch:
    vectors = stride(width) // 4
    shape = context.constants.shape(x_stride=vectors, y_stride=vectors)
    bound = context.kernels.get(name).bind({"shape": shape, **buffers})
    return Dispatch(single=bound, grid=(-(-vectors // 64), 1, 1))
